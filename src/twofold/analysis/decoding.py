"""What a step of decoding, and a prefill, move and compute: bytes of weights and rows, and multiply-accumulates.

Of a decoder of this package. `published_decoding` has the same for published models. Counted are matrices and
attention; left out are biases, norms, softmax, activations, the new rows of a step, and the few rows of tables that
embeddings look up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from twofold.analysis import costs
from twofold.analysis.roofline import Work
from twofold.models.architecture import Architecture
from twofold.variants import tensors
from twofold.variants.layout import cache_bytes, item_bytes, scale_bytes

LONGEST = 2**40
"""Tokens beyond which a context counts as unlimited."""


def decode_work(arch: Architecture, context: int, dtype: str, batch: int = 1) -> Work:
    """One step of `batch` sequences that hold `context` tokens each, the new one included: `batch` new tokens.

    Weights are read once for the whole batch, as often as layers use them; rows of every sequence are read by each
    layer that sees them, so that layers which share rows save memory and no reading. Latents are read as they are
    stored, with the matrices that expand them absorbed (arXiv 2405.04434). A recurrent state is read and written.
    """
    costs.cache_bytes(arch, context, dtype, batch)  # refuses sizes and dtypes without a meaning
    return Work(
        weight_bytes=weights_read(arch) * item_bytes(dtype),
        row_bytes=_rows_read(arch, context, dtype, batch),
        macs=batch * _macs_of_a_token(arch, context),
    )


def prefill_work(arch: Architecture, context: int, dtype: str, batch: int = 1) -> Work:
    """The pass over `batch` prompts of `context` tokens that fills the cache: all rows written once.

    Multiply-accumulates as `costs.macs`, the masked half of the scores included, with the head for the last token only.
    """
    found = costs.macs(arch, context)
    return Work(
        weight_bytes=weights_read(arch) * item_bytes(dtype),
        row_bytes=costs.cache_bytes(arch, context, dtype, batch),
        macs=batch * (found["attention"] + found["mlp"] + arch.width * arch.vocab),
    )


def weights_read(arch: Architecture) -> int:
    """Parameters that one step reads: all that layers use, each time that they do, and the head.

    Of the tables of tokens and positions only looked-up rows are read; a tied head reads the token table.
    """
    parts = costs.parameters(arch)
    attention = sum(tensors.parameters(arch.at(layer).variant, arch.layer_sizes(layer)) for layer in range(arch.layers))
    return attention + parts["mlp"] + parts["norm"] + arch.vocab * arch.width


def longest_context(cache: Callable[[int], int], room: int) -> int | None:
    """The most tokens whose cache fits in `room` bytes, where `cache` gives the bytes of so many; 0 for none.

    None where there is no limit, as with windows alone.
    """
    if cache(LONGEST) <= room:
        return None
    return bisect_right(range(1, LONGEST), room, key=cache)


def _rows_read(arch: Architecture, context: int, dtype: str, batch: int) -> int:
    if arch.is_recurrent:
        return 2 * arch.cache_bytes(context, dtype, batch)
    return sum(
        cache_bytes(
            arch.at(layer).row_layout,
            arch.at(layer).kv_heads,
            tokens=costs.visible_tokens(arch, layer, context),
            itemsize=item_bytes(dtype),
            batch=batch,
            scale_bytes=scale_bytes(dtype),
        )
        for layer in range(arch.layers)
    )


def _macs_of_a_token(arch: Architecture, context: int) -> int:
    """Of one token that sees `context` tokens: its matrices, and H·(key + value) for each row that it sees."""
    found = costs.macs(arch, 1)
    attention = sum(
        tensors.macs_per_token(arch.at(layer).variant, arch.layer_sizes(layer), 0)
        + _macs_per_row(arch.at(layer)) * costs.visible_tokens(arch, layer, context)
        for layer in range(arch.layers)
    )
    return attention + found["mlp"] + found["head"]


def _macs_per_row(arch: Architecture) -> int:
    """H·(key + value dims) of rows as they are stored; where keys are made on read, making both is counted too."""
    if arch.is_recurrent:
        return 0
    if tensors.makes_keys(arch.variant, arch.rotated_dims, arch.qk_norm):
        made = arch.variant.score_heads_for(arch.heads) * arch.latent_width
        return 2 * arch.head_dim * (made + arch.heads)
    return arch.heads * (arch.row_layout.key_dim + arch.row_layout.value.width)
