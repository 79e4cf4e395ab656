"""What no target has: every reason against an export, each with the nearest form that can be exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twofold.models.architecture import Architecture, Reach
from twofold.variants.tensors import matrices

NEAREST = "K=V decoupled or MLA for deepseek, QKV, GQA-g or K=V on_read with rotary full for llama"
"""Variants that export, in words."""


def common_reasons(sizes: Architecture) -> Iterator[str]:
    """Reasons against both families: what neither Llama nor DeepSeek-V3 has."""
    if sizes.is_recurrent:
        yield f"{sizes.variant} keeps a state and no rows, and the target takes a softmax over rows: use {NEAREST}"
        return
    if is_mixture(sizes):
        latents = sorted({one.latent_width for one in sizes.each})
        differ = f"latents of {_listed(latents)} dims" if len(set(sizes.variants)) == 1 else sizes.described
        yield (
            f"its layers differ ({differ}), and the target's are all alike: use one variant and latent for all, "
            f"{NEAREST}"
        )
        return
    if sizes.block == "paper":
        yield (
            "its blocks have LayerNorm, GELU and biases (block paper), and the target's RMSNorm, SwiGLU and no biases: "
            "use block modern"
        )
    elif any(matrix.bias for matrix in matrices(sizes.variant, sizes.layer_sizes()).values()):
        yield "its queries, keys and values have biases (qkv_bias), and the target's none: use qkv_bias false"
    if sizes.learned_positions:
        yield "it has learned absolute positions, and the target has rotary alone: use rotary full, or K=V decoupled"
    if sizes.qk_norm:
        yield "it normalises queries and keys of each head (qk_norm), which the target does not: use qk_norm false"
    if sizes.softcap:
        yield f"its scores are capped (softcap {sizes.softcap:g}), which the target's are not: use softcap 0"
    if sizes.sinks:
        yield "its heads have sinks, which the target's do not: use sinks false"
    if set(sizes.reaches) != {Reach()}:
        yield (
            f"its layers {sizes.layer_pattern!r} see a window of {sizes.window} tokens, and the target's layers see "
            "all: use no window"
        )
    if sizes.variant.nonlinear_query:
        yield "its query is a small network (nonlinear-WQ), and the target has one matrix: drop nonlinear-WQ"
    if sizes.variant.row_layers > 1:
        yield (
            f"its layers read the rows of others (CLA-{sizes.variant.row_layers}), and every layer of the target makes "
            "its own: drop the CLA"
        )


def _listed(numbers: Sequence[int]) -> str:
    """`3, 4 and 5`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def is_mixture(sizes: Architecture) -> bool:
    """Whether layers differ in their variant or their latent."""
    return len(set(sizes.each)) > 1


def require_none(reasons: Iterator[str], sizes: Architecture, target: str) -> None:
    """Raise ValueError with every reason, where there is one."""
    if found := list(reasons):
        raise ValueError(f"{sizes.described} cannot be exported as {target} without loss: {'; '.join(found)}")
