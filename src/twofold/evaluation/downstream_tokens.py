"""Which tokens a request of lm-evaluation-harness scores, and which tokens the model reads before each of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Pieces = tuple[list[int], list[int]]


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of a text alone: no special token is added, and characters that look like one stay text."""
    return list(_encoded(tokenizer, text)["input_ids"])


def encode_pair(tokenizer: PreTrainedTokenizerBase, end: int, context: str, continuation: str) -> Pieces:
    """Tokens of the context, after the `end` token that begins every document in training, and of the continuation.

    The whole text is encoded once, as training would. White space at the end of the context is scored with the
    continuation, which is the harness's rule for every model. A token that holds characters of both is scored with the
    continuation too; a character is never split between the two.

    Raises ValueError for a tokenizer that does not tell where its tokens end.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            "this tokenizer does not tell where its tokens end in a text (it is no fast one), so a context cannot be "
            "told from its continuation: take a tokenizer with a tokenizer.json"
        )
    encoded = _encoded(tokenizer, context + continuation, return_offsets_mapping=True)
    ends = [last for _, last in encoded["offset_mapping"]]
    cut = bisect_right(ends, len(context.rstrip()))
    return [end, *encoded["input_ids"][:cut]], list(encoded["input_ids"][cut:])


def windows(context: list[int], continuation: list[int], length: int) -> Iterator[Pieces]:
    """(inputs, targets) of forward passes of at most `length` tokens that score each token of the continuation once.

    The targets are what follows the last inputs. A context that does not fit loses its beginning. A continuation of
    more than `length` tokens is scored in pieces of half of that, so that a token sees at least `length` // 2 others.
    """
    return _cut(context, continuation, length, length if len(continuation) <= length else (length + 1) // 2)


def rolling_windows(end: int, text: list[int], length: int) -> Iterator[Pieces]:
    """`windows` of a text of any length after `end`, as the harness cuts them for rolling likelihoods.

    Pieces are of `length` tokens, and begin with one token of context each; the last has as much as fits.
    """
    return _cut([end], text, length, length)


def _cut(context: list[int], continuation: list[int], length: int, step: int) -> Iterator[Pieces]:
    whole = context + continuation
    for first in range(len(context), len(whole), step):
        last = min(first + step, len(whole))
        yield whole[max(last - 1 - length, 0) : last - 1], whole[first:last]


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str, **options: bool) -> dict[str, list]:
    return tokenizer(
        text,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
        **options,
    )
