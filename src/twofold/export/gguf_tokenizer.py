"""A byte-level BPE tokenizer, with merges or without, as GGUF keeps it, so that llama.cpp reads and writes text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedTokenizerBase

NO_MERGE = "~ ~"
"""llama.cpp wants a list of merges that is not empty. This one makes what is no token, and it then falls back to the
tokens of the letters, where they are ASCII."""

ALTERING = ("ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
"""Options of BPE with which the same merges make other tokens."""


def add_tokenizer(writer: GGUFWriter, config: Any, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Tokens, their kinds, merges and special ids; without a tokenizer the file says that it has none.

    Raises ValueError for a tokenizer that is not byte-level BPE.
    """
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return
    model, split = _bpe(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    names, kinds = _tokens(tokenizer, config.vocab_size)
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_token_merges(merges or [NO_MERGE])
    writer.add_add_bos_token(False)
    ends = config.eos_token_id
    for add, token in (
        (writer.add_bos_token_id, config.bos_token_id),
        (writer.add_eos_token_id, ends[0] if isinstance(ends, list) else ends),
        (writer.add_pad_token_id, config.pad_token_id),
    ):
        if token is not None:
            add(token)


def _bpe(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, Any], str]:
    """The model part of `tokenizer.json`, and llama.cpp's name of how text is split before it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    whole = {} if backend is None else json.loads(backend.to_str())
    model = whole.get("model", {})
    split = _split(whole.get("pre_tokenizer") or {}, bool(model.get("merges")))
    altered = [name for name in ALTERING if model.get(name)]
    with_them = f", with {' and '.join(altered)}," if altered else ""
    if model.get("type") != "BPE" or split is None or whole.get("normalizer") or altered:
        raise ValueError(
            f"the tokenizer {type(tokenizer).__name__}{with_them} is not byte-level BPE split as GPT-2 or SmolLM "
            "splits, which is what this writes into GGUF: export as deepseek, with its own tokenizer files, and "
            "convert that"
        )
    return model, split


def _split(before: dict[str, Any], merges: bool) -> str | None:
    """GPT-2's pieces, or these with every digit by itself; None for another split. Without merges none is needed."""
    *first, last = before.get("pretokenizers") or [before]
    if last.get("type") != "ByteLevel" or last["add_prefix_space"] or (merges and not last["use_regex"]):
        return None
    if not first:
        return "gpt-2"
    digits = [one.get("type") == "Digits" and one["individual_digits"] for one in first]
    return "smollm" if digits == [True] else None


def _tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> tuple[list[str], list[int]]:
    """The text of every id and its kind; ids without a token are unused."""
    from gguf import TokenType

    names = {number: name for name, number in tokenizer.get_vocab().items()}
    kinds = [TokenType.NORMAL if number in names else TokenType.UNUSED for number in range(size)]
    added = getattr(tokenizer, "added_tokens_decoder", {})  # these are found in text before it is split
    for number in sorted({*added, *tokenizer.all_special_ids} & names.keys()):
        special = number in tokenizer.all_special_ids or added[number].special
        kinds[number] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    return [names.get(number, f"[UNUSED{number}]") for number in range(size)], kinds
