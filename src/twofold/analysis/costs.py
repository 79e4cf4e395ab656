"""What a decoder costs, counted from its structure: parameters, multiply-accumulates, bytes. No torch, no model.

Counts follow arXiv 2606.04032's architecture (section 3 and appendix) and today's block; a test compares them with
real models. Cache bytes come from the row layout and nowhere else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from twofold.models.architecture import Architecture
from twofold.variants import tensors
from twofold.variants.layout import item_bytes

if TYPE_CHECKING:
    from torch.nn import Module


def parameters(arch: Architecture) -> dict[str, int]:
    """Parameters by part, and their `total`. A tied head adds none: `head` is then 0.

    `embedding` is the token table, `positions` that of learned positions with all its rows, `attention` and `mlp` all
    layers with their biases, `norm` two per layer and the final one.
    """
    parts = {
        "embedding": arch.vocab * arch.width,
        "positions": arch.position_rows * arch.width,
        "attention": _attention_parameters(arch),
        "mlp": arch.layers * _mlp_parameters(arch),
        "norm": (2 * arch.layers + 1) * _norm_parameters(arch),
        "head": 0 if arch.tied else arch.vocab * arch.width,
    }
    return {**parts, "total": sum(parts.values())}


PART_MODULES = {
    "embedding": ("embed_tokens", "embed_features", "embed_patches"),
    "positions": ("embed_positions", "position_term"),
    "attention": ("attention",),
    "mlp": ("mlp",),
    "norm": ("norm", "attention_norm", "mlp_norm"),
    "head": ("lm_head", "classifier"),
}
"""Part → the words in a parameter's dotted name that put it there."""


def measured_parameters(model: Module) -> dict[str, int]:
    """The same counted on a real model, decoder or encoder: every parameter once, under the part that its name says.

    `positions` are then also an encoder's terms on the scores, and `embedding` what reads features or patches.
    """
    parts = dict.fromkeys(PART_MODULES, 0)
    for name, parameter in model.named_parameters():
        words = set(name.split("."))
        part = next(part for part, modules in PART_MODULES.items() if words & set(modules))
        parts[part] += parameter.numel()
    return {**parts, "total": sum(parts.values())}


def macs(arch: Architecture, tokens: int) -> dict[str, int]:
    """Multiply-accumulates of one forward pass over one sequence of T = `tokens`, by part, and their `total`.

    Per layer: T times each matrix, and T²·H·D each for the scores and for the weighted sum, with the masked half
    counted too (`variants.tensors.macs_per_token`); MLP T·M·F per matrix; head T·M·V. Biases, norms, softmax and rotary
    are left out, as in arXiv 2606.04032.
    """
    _at_least_one("tokens", tokens)
    per_token = (
        tensors.macs_per_token(arch.at(layer).variant, arch.layer_sizes(layer), visible_tokens(arch, layer, tokens))
        for layer in range(arch.layers)
    )
    parts = {
        "attention": tokens * sum(per_token),
        "mlp": arch.layers * tokens * _mlp_matrices(arch) * arch.width * arch.mlp,
        "head": tokens * arch.width * arch.vocab,
    }
    return {**parts, "total": sum(parts.values())}


def visible_tokens(arch: Architecture, layer: int, tokens: int) -> int:
    """Tokens that a token's scores are counted for: all, the masked half too, or those of a window or three blocks."""
    window, block = arch.reaches[layer]
    visible = window or (3 * block if block else tokens)
    return min(tokens, visible)


def cache_bytes(arch: Architecture, tokens: int, dtype: str, batch: int = 1) -> int:
    """Bytes of the row cache of `batch` sequences of `tokens` each, over all layers."""
    _at_least_one("tokens", tokens)
    _at_least_one("batch", batch)
    return arch.cache_bytes(tokens, dtype, batch)


def cache_bytes_per_token(arch: Architecture, dtype: str) -> int:
    """Bytes that one more token adds to the cache, over all layers, before any window is full; 0 for a recurrence."""
    return 0 if arch.is_recurrent else cache_bytes(arch, 1, dtype)


def weight_bytes(arch: Architecture, dtype: str) -> int:
    """Bytes of all parameters stored as `dtype`; what is tied or shared is stored once."""
    return parameters(arch)["total"] * item_bytes(dtype)


def sequences_that_fit(memory_bytes: int, arch: Architecture, context: int, dtype: str) -> int:
    """Sequences of `context` tokens whose caches fit beside the weights: ⌊(memory − weights) / cache⌋, never below 0.

    Activations and the framework's own memory are not counted.
    """
    room = memory_bytes - weight_bytes(arch, dtype)
    return max(0, room // cache_bytes(arch, context, dtype))


@dataclass(frozen=True)
class Plan:
    """What one architecture needs. Bytes are bytes; counts are counts.

    `cache_bytes` is one sequence of `context` tokens, `cache_bytes_batch` is `batch` of them; `macs` is one forward
    pass over `tokens`. `sequences_that_fit` is None where no memory was given.
    """

    variant: str
    parameters: int
    attention_parameters: int
    parameters_by_part: dict[str, int]
    macs: dict[str, int]
    cache_bytes_per_token: int
    cache_bytes: int
    cache_bytes_batch: int
    weight_bytes: int
    context: int
    tokens: int
    batch: int
    dtype: str
    memory_bytes: int | None
    sequences_that_fit: int | None
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON takes it."""
        return {**asdict(self), "warnings": list(self.warnings)}


def plan(
    arch: Architecture,
    *,
    context: int | None = None,
    tokens: int | None = None,
    dtype: str = "bfloat16",
    batch: int = 1,
    memory: int | None = None,
) -> Plan:
    """Everything above for one architecture. `context` and `tokens` default to the model's positions.

    `memory` is in bytes. Raises ValueError for sizes below 1 and for an unknown dtype.
    """
    context = arch.positions if context is None else context
    tokens = arch.positions if tokens is None else tokens
    _at_least_one("context", context)
    if memory is not None:
        _at_least_one("memory", memory)
    counts = parameters(arch)
    fit = None if memory is None else sequences_that_fit(memory, arch, context, dtype)
    return Plan(
        variant=arch.described,
        parameters=counts["total"],
        attention_parameters=counts["attention"],
        parameters_by_part={part: count for part, count in counts.items() if part != "total"},
        macs=macs(arch, tokens),
        cache_bytes_per_token=cache_bytes_per_token(arch, dtype),
        cache_bytes=cache_bytes(arch, context, dtype),
        cache_bytes_batch=cache_bytes(arch, context, dtype, batch),
        weight_bytes=weight_bytes(arch, dtype),
        context=context,
        tokens=tokens,
        batch=batch,
        dtype=dtype,
        memory_bytes=memory,
        sequences_that_fit=fit,
        warnings=(
            *_position_warnings(arch, {"context": context, "tokens": tokens}),
            *_memory_warnings(weight_bytes(arch, dtype), memory, fit, batch),
        ),
    )


def _attention_parameters(arch: Architecture) -> int:
    """Of all layers; a layer that uses another's projections has none."""
    owners = {layer for layer, owner in enumerate(arch.matrix_owners) if owner == layer}
    return sum(tensors.parameters(arch.at(layer).variant, arch.layer_sizes(layer)) for layer in owners)


def _mlp_matrices(arch: Architecture) -> int:
    """Up and down; SwiGLU has a gate as well."""
    return 2 if arch.block == "paper" else 3


def _mlp_parameters(arch: Architecture) -> int:
    biases = arch.mlp + arch.width if arch.biases else 0
    return _mlp_matrices(arch) * arch.width * arch.mlp + biases


def _norm_parameters(arch: Architecture) -> int:
    """LayerNorm has a weight and a bias, RMSNorm a weight."""
    return (2 if arch.block == "paper" else 1) * arch.width


def _position_warnings(arch: Architecture, lengths: dict[str, int]) -> list[str]:
    consequence = (
        "its learned positions end there, so that it cannot run further; the numbers are arithmetic"
        if arch.learned_positions
        else "rotary lets it run further, but it is not trained for that"
    )
    return [
        f"{name} {length:,} exceeds the {arch.positions:,} positions of this model: {consequence}"
        for name, length in lengths.items()
        if length > arch.positions
    ]


def _memory_warnings(weights: int, memory: int | None, fit: int | None, batch: int) -> list[str]:
    if memory is None or fit is None:
        return []
    if weights > memory:
        return [f"the weights alone need {weights:,} bytes, and memory is {memory:,}"]
    if fit < batch:
        return [f"a batch of {batch:,} does not fit beside the weights: {fit:,} sequences do"]
    return []


def _at_least_one(name: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
