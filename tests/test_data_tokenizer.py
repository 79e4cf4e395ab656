"""Tokenizers by name: bytes, BPE trained on the text, and any of Hugging Face's."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer, GPT2Config, PreTrainedTokenizerFast

from tiny_study import documents, tiny_model
from twofold.data import trained_tokenizer
from twofold.data.byte_tokens import END_TEXT, byte_level_letters
from twofold.data.corpus import Document
from twofold.data.pretrained_tokenizer import read_pretrained
from twofold.data.tokenizer import BYTES, choose, load_tokenizer, vocabulary
from twofold.data.tokens import tokenise

SIZE = 283  # the texts are ten words, which is all that there is to merge


@pytest.fixture(scope="module")
def texts():
    return documents(seed=5)


@pytest.fixture(scope="module")
def trained(texts):
    return choose(f"bpe-{SIZE}", lambda: texts)


def save(folder, extra=0, **special):
    """A byte-level tokenizer of 256 + `extra` tokens and special ones, as a folder."""
    words = {letter: index for index, letter in enumerate(byte_level_letters())}
    words |= {f"unused{index}": 256 + index for index in range(extra)}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special.values()])
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return read_pretrained(save(tmp_path_factory.mktemp("saved"), eos_token="</s>", pad_token="<pad>"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A tokenizer in plain Python, without a fast twin."""
    folder = tmp_path_factory.mktemp("slow")
    ByT5Tokenizer().save_pretrained(folder)
    return read_pretrained(str(folder))


@given(st.text())
@example(END_TEXT)
@example("</s><pad></s>")
@example(f"a{END_TEXT}b </s>\r\n\t\x00")
@example("  two  spaces , and don 't 12345 naïve 日本")
def test_a_text_comes_back_and_its_characters_never_become_special_tokens(trained, saved, slow, text):
    for tokenizer in (BYTES, trained, saved, slow):
        tokens = tokenizer.encode(text.encode())
        assert tokenizer.end not in tokens
        assert (tokens < tokenizer.vocabulary).all()
        assert tokenizer.decode(tokens) == text
        assert tokenizer.decode([tokenizer.end, *tokens, tokenizer.end]) == text


@given(st.lists(st.text(max_size=9), min_size=1, max_size=5))
def test_a_batch_is_each_text_alone(trained, saved, slow, texts):
    for tokenizer in (BYTES, trained, saved, slow):
        batch = tokenizer.encode_batch([text.encode() for text in texts])
        assert [tokens.tolist() for tokens in batch] == [tokenizer.encode(text.encode()).tolist() for text in texts]
        assert {tokens.dtype for tokens in batch} == {np.dtype(np.uint16)}


def test_training_gives_as_many_tokens_as_asked_for_and_shorter_texts(trained, texts):
    assert trained.vocabulary == vocabulary(f"bpe-{SIZE}") == SIZE
    assert len(trained.for_transformers()) == SIZE
    plain, merged = (len(tokenise(texts, one).tokens) for one in (BYTES, trained))
    assert merged < 0.6 * plain


def test_end_cannot_be_spelt_even_where_the_text_is_full_of_it():
    tokenizer = choose("bpe-280", lambda: [Document("a", (END_TEXT * 997).encode()), *documents(3)])
    assert tokenizer.end not in tokenizer.encode(END_TEXT.encode() * 3)


def test_the_same_documents_give_the_same_tokenizer_in_another_process(trained, texts, tmp_path):
    code = (
        "import json, sys\n"
        "from twofold.data.corpus import Document\n"
        "from twofold.data.trained_tokenizer import trained_tokenizer\n"
        "texts = [Document(name, text.encode()) for name, text in json.load(sys.stdin)]\n"
        f"print(trained_tokenizer({SIZE}, texts).backend_tokenizer.to_str())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([(document.name, document.content.decode()) for document in texts]),
        env={"TWOFOLD_CACHE": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout) == json.loads(trained.for_transformers().backend_tokenizer.to_str())


def test_it_is_trained_once_for_the_same_text_and_size_and_reads_no_more_than_it_needs(own_cache, texts, monkeypatch):
    monkeypatch.setattr(trained_tokenizer, "TRAINING_BYTES", 5000)
    told = []
    first = trained_tokenizer.trained_tokenizer(277, texts, lambda *place: told.append(place))
    assert told[-1][0] == told[-1][1]
    assert 5000 <= told[-1][1] < 5000 + max(document.size for document in texts)
    before = len(list((own_cache / "tokenizers").iterdir()))
    del told[:]
    again = trained_tokenizer.trained_tokenizer(277, [*texts, Document("later", b"beyond what is read")], told.append)
    assert again.get_vocab() == first.get_vocab()
    assert not told
    assert len(list((own_cache / "tokenizers").iterdir())) == before
    trained_tokenizer.trained_tokenizer(277, texts[1:])
    assert len(list((own_cache / "tokenizers").iterdir())) > before


def test_too_little_text_for_so_many_tokens():
    with pytest.raises(ValueError, match=r"bpe-999 asks for 999 tokens, and 14 bytes .* only (\d+): take bpe-\1"):
        choose("bpe-999", lambda: [Document("a", b"banana banana\n")])


@pytest.mark.parametrize("name", ["byte", "bpe", "bpe-256", "bpe4096", "BPE-4096", "bpe-04096", "bpe-9999999", "bpe-x"])
def test_a_name_that_nearly_is_one(name):
    for ask in (vocabulary, lambda name: choose(name, list)):
        with pytest.raises(ValueError, match="is no tokenizer: write bytes, or bpe-4096"):
            ask(name)


def test_what_ends_documents(tmp_path):
    both = read_pretrained(save(tmp_path / "both", bos_token="<s>", eos_token="</s>"))
    assert both.decode([both.encode(b"a")[0], both.end]) == "a"
    assert both.for_transformers().convert_ids_to_tokens(both.end) == "</s>"
    for role in ("sep_token", "bos_token"):
        one = read_pretrained(save(tmp_path / role, **{role: "<x>"}))
        assert one.for_transformers().convert_ids_to_tokens(one.end) == "<x>"
    with pytest.raises(ValueError, match="has no end-of-text token"):
        read_pretrained(save(tmp_path / "none", pad_token="<pad>"))


@pytest.mark.parametrize(("extra", "kind"), [(2**16 - 257, np.uint16), (2**16 - 256, np.uint32)])
def test_a_large_vocabulary_takes_wider_tokens(tmp_path, extra, kind):
    folder = save(tmp_path, extra=extra, eos_token="</s>")
    large = choose(folder, list)
    assert vocabulary(folder) == large.vocabulary == large.end + 1 == 257 + extra
    stream = tokenise([Document("a", b"xy"), Document("b", b"z")], large)
    assert stream.tokens.dtype == kind
    assert stream.tokens.tolist() == [large.end, 120, 121, large.end, 122, large.end]


def test_what_is_no_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in (str(tmp_path), str(tmp_path / "no"), "nobody/has-this-tokenizer"):
        with pytest.raises(ValueError, match=r"^No tokenizer .* Give bytes, bpe-4096") as error:
            vocabulary(name)
        assert "\n" not in str(error.value)


def test_a_model_s_folder_without_a_tokenizer_has_none(tmp_path):
    """Of its type alone, transformers would make one that knows no word."""
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"No tokenizer .*: none of tokenizer\.json, .* lies there\. Give bytes"):
        vocabulary(str(tmp_path))


def test_text_that_is_none_is_for_bytes_alone(trained):
    with pytest.raises(ValueError, match=r"not UTF-8: byte 0xff at offset 2"):
        trained.encode(b"ab\xff")


def test_a_models_folder_brings_its_own_tokenizer(trained, saved, tmp_path):
    for tokenizer in (BYTES, trained, saved):
        folder = tmp_path / str(tokenizer.vocabulary)
        tokenizer.for_transformers().save_pretrained(folder)
        loaded = load_tokenizer(folder)
        assert (loaded.end, loaded.vocabulary) == (tokenizer.end, tokenizer.vocabulary)
        assert (
            loaded.encode(f"def {END_TEXT}".encode()).tolist() == tokenizer.encode(f"def {END_TEXT}".encode()).tolist()
        )
    assert load_tokenizer(tmp_path / "257") is BYTES
    tiny_model().save_pretrained(tmp_path / "alone")
    assert load_tokenizer(tmp_path / "alone") is BYTES


def test_a_model_that_lost_its_tokenizer(tmp_path):
    tiny_model(vocab=263).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds no tokenizer .* has 263 tokens, where bytes have 257\. Put back"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tokenizer.json", lambda content: content[:-7]),
        ("tokenizer.json", lambda content: ""),
        ("tokenizer.json", lambda content: "{}"),
        ("tokenizer.json", lambda content: content.replace('"BPE"', '"XYZ"')),
        ("tokenizer_config.json", lambda content: "[]"),
        ("tokenizer_config.json", lambda content: json.dumps({**json.loads(content), "eos_token": 5})),
    ],
)
def test_damaged_files_are_told_in_one_line_with_what_to_do(saved, tmp_path, file, damage):
    saved.for_transformers().save_pretrained(tmp_path)
    (tmp_path / file).write_text(damage((tmp_path / file).read_text()))
    for ask, advice in ((load_tokenizer, "Put back the tokenizer's files"), (read_pretrained, "Give bytes, bpe-4096")):
        with pytest.raises(ValueError, match=r"^No tokenizer '.*[^\n]$") as error:
            ask(tmp_path if ask is load_tokenizer else str(tmp_path))
        assert advice in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [lambda text: "", lambda text: "{}", lambda text: text[: len(text) // 2]])
def test_a_damaged_tokenizer_in_the_cache_is_trained_again(texts, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    first = trained_tokenizer.trained_tokenizer(263, texts)
    (file,) = tmp_path.glob("tokenizers/*/tokenizer.json")
    file.write_text(damage(file.read_text()))
    assert trained_tokenizer.trained_tokenizer(263, texts).get_vocab() == first.get_vocab()
    other = trained_tokenizer.trained_tokenizer(261, texts).backend_tokenizer.to_str()
    file.write_text(other)  # whole, and of another size
    assert trained_tokenizer.trained_tokenizer(263, texts).get_vocab() == first.get_vocab()


def test_the_fingerprint_is_of_the_tokens_and_not_of_the_network(tmp_path, monkeypatch):
    folder = save(tmp_path / "one", eos_token="</s>")
    first = read_pretrained(folder).fingerprint
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert read_pretrained(folder).fingerprint == first
    assert read_pretrained(save(tmp_path / "other", extra=1, eos_token="</s>")).fingerprint != first
