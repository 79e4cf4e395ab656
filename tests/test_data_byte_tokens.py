import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

from twofold.data.byte_tokens import (
    END,
    END_TEXT,
    VOCABULARY,
    byte_level_letters,
    byte_tokenizer,
    decode,
    decode_text,
    encode,
)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def reloaded(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    assert (folder / "tokenizer.json").is_file()
    return AutoTokenizer.from_pretrained(folder)


@given(st.binary())
def test_a_token_is_a_byte_and_decodes_to_it(text):
    tokens = encode(text)
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == list(text)
    assert decode(tokens) == text


@given(st.lists(st.binary(max_size=5)))
def test_decoding_drops_ends(texts):
    tokens = [token for text in texts for token in (END, *text, END)]
    assert decode(tokens) == b"".join(texts)


@pytest.mark.parametrize("token", [-1, VOCABULARY, 50_256])
def test_decoding_refuses_other_tokens(token):
    with pytest.raises(ValueError, match=f"Token {token} is not a byte token"):
        decode([65, token])


def test_the_letters_are_those_of_byte_level_tokenizers():
    letters = byte_level_letters()
    assert len(set(letters)) == 256
    assert set(letters) == set(ByteLevel.alphabet())
    assert [letters[byte] for byte in b"A~ \n"] == ["A", "~", "Ġ", "Ċ"]  # as GPT-2 writes them


@given(st.text())
@example(END_TEXT)
@example(f"a{END_TEXT}b ")
@example("  two  spaces , and don 't\r\n\t\x00")
@example("".join(map(chr, range(0x250))))
def test_the_tokenizer_gives_the_same_tokens_and_text_also_when_reloaded(tokenizer, reloaded, text):
    for each in (tokenizer, reloaded):
        ids = each(text).input_ids
        assert ids == encode(text.encode()).tolist()
        assert each.decode(ids) == text


def test_the_end_token_is_the_only_special_one(tokenizer, reloaded):
    for each in (tokenizer, reloaded):
        assert len(each) == VOCABULARY
        assert each.bos_token_id == each.eos_token_id == each.pad_token_id == END
        assert each.decode([65, END, 66]) == f"A{END_TEXT}B"
        assert each.decode([65, END, 66], skip_special_tokens=True) == "AB"


def test_a_batch_is_padded_on_the_left_and_masked(tokenizer, reloaded):
    for each in (tokenizer, reloaded):
        batch = each(["abc", "d"], padding=True)
        assert batch.input_ids == [[97, 98, 99], [END, END, 100]]
        assert batch.attention_mask == [[1, 1, 1], [0, 0, 1]]


def test_text_shows_what_is_not_utf_8():
    assert decode_text([END, *"naïve".encode(), END]) == "naïve"
    assert decode_text([0x61, 0xC3]) == "a\ufffd"
