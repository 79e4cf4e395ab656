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


def add_tokenizer(writer: GGUFWriter, config: Any, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Tokens, their kinds, merges and special ids; without a tokenizer the file says that it has none.

    Raises ValueError for a tokenizer that is not byte-level BPE.
    """
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return
    model = _bpe(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
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


def _bpe(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The model part of `tokenizer.json`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    whole = {} if backend is None else json.loads(backend.to_str())
    model, before = whole.get("model", {}), whole.get("pre_tokenizer") or {}
    known = model.get("type") == "BPE" and before.get("type") == "ByteLevel" and not before["add_prefix_space"]
    if not known or whole.get("normalizer") or (model["merges"] and not before["use_regex"]):
        raise ValueError(
            f"the tokenizer {type(tokenizer).__name__} is not byte-level BPE split as GPT-2 splits, which is "
            "what this writes into GGUF: export as deepseek, with its own tokenizer files, and convert that"
        )
    return model


def _tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> tuple[list[str], list[int]]:
    """The text of every id and its kind; ids without a token are unused."""
    from gguf import TokenType

    names = {number: name for name, number in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    kinds = [
        TokenType.UNUSED if number not in names else TokenType.CONTROL if number in special else TokenType.NORMAL
        for number in range(size)
    ]
    return [names.get(number, f"[UNUSED{number}]") for number in range(size)], kinds
