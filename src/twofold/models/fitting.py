"""Whether the sizes and choices of an architecture fit together; every check raises ValueError with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from twofold.variants.choices import PositionTerm, Recurrence

if TYPE_CHECKING:
    from twofold.models.architecture import Architecture


def one_of(name: str, value: str, choices: Mapping[str, str]) -> None:
    """`value` is one of the choices, which map a name to its meaning."""
    if value not in choices:
        listed = "; ".join(f"{key} ({meaning})" for key, meaning in choices.items())
        raise ValueError(f"{name} {value!r} is unknown: choose {listed}")


def counts(arch: Architecture, names: tuple[str, ...]) -> None:
    """These fields are at least 1."""
    for name in names:
        if getattr(arch, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(arch, name)}")


def head_dim(width: int, heads: int) -> int:
    """Width / heads, where that is a whole number."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of {heads} heads: give head_dim, or another width")
    return width // heads


def numbers(arch: Architecture) -> None:
    """Fields with a range are in it."""
    for name in ("head_dim", "rotary_base", "norm_epsilon", "initial_deviation"):
        if not getattr(arch, name) > 0:
            raise ValueError(f"{name} must be greater than 0, not {getattr(arch, name)}")
    if arch.qkv_bias and arch.biases:
        raise ValueError(f"block {arch.block} has biases everywhere: leave qkv_bias out")
    if arch.position_offset < 0:
        raise ValueError(f"position_offset must be at least 0, not {arch.position_offset}")
    if not 0 <= arch.dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {arch.dropout}")
    if not 0 <= arch.scale_exponent <= 2:
        raise ValueError(f"scale_exponent must be between 0 and 2, not {arch.scale_exponent}: scores are q·k · d^−p")
    if not 0 <= arch.softcap < float("inf"):
        raise ValueError(f"softcap must be a positive number, or 0 for none, not {arch.softcap}")


def rotary(arch: Architecture) -> None:
    """The rotated dims are pairs, and as many as the variant can rotate."""
    chosen, dims, all_dims = arch.rotary, arch.rotated_dims, arch.head_dim
    if chosen == "none":
        if arch.rotary_dims:
            raise ValueError(
                f"rotary none rotates no dims, and rotary_dims is {arch.rotary_dims}: leave one of the two out"
            )
        if arch.variant.needs_rotary_part:
            raise ValueError(f"{arch.variant} rotates some dims and not others: it needs rotary partial, not none")
        return
    if arch.position_offset:
        raise ValueError(
            f"position_offset {arch.position_offset} is for learned positions, and rotary is {chosen}: leave it out, "
            "or use rotary none"
        )
    if arch.is_recurrent:
        raise ValueError(
            f"{arch.variant} has no rotary, since a feature map does not keep rotated vectors apart: use rotary none"
        )
    if chosen == "full" and arch.variant.needs_rotary_part:
        raise ValueError(
            f"{arch.variant} with rotary over all dims saves nothing: use rotary partial, with rotary_dims below "
            f"{all_dims}"
        )
    if chosen == "full" and dims != all_dims:
        raise ValueError(f"rotary full rotates all {all_dims} dims of a head, and rotary_dims is {dims}: use partial")
    if dims % 2 or dims < 2:
        raise ValueError(
            f"rotary turns dims in pairs: head_dim must be even, not {all_dims}"
            if chosen == "full"
            else f"rotary turns dims in pairs: rotary_dims must be even and at least 2, not {dims}; give rotary_dims"
        )
    rotary_pairs(arch)
    if dims > all_dims and not arch.variant.rotary_apart:
        raise ValueError(f"rotary_dims {dims} are more than the {all_dims} dims of a head")
    if dims == all_dims and arch.variant.needs_rotary_part and not arch.variant.rotary_apart:
        raise ValueError(f"{arch.variant} over all {all_dims} dims saves nothing: give fewer rotary_dims")


def rotary_pairs(arch: Architecture) -> None:
    """Chosen pairs are pairs of a head, each once, and belong to a rotary key that stands apart."""
    pairs, most = arch.rotary_pairs, arch.head_dim // 2
    if not pairs:
        return
    if not arch.variant.rotary_apart:
        raise ValueError(f"rotary_pairs are for a rotary key of its own, which {arch.variant} has not: leave them out")
    if len(set(pairs)) < len(pairs) or min(pairs) < 0 or max(pairs) >= most:
        raise ValueError(f"rotary_pairs must be different numbers from 0 to {most - 1}, not {list(pairs)}")
    if arch.rotary_dims not in (0, 2 * len(pairs)):
        raise ValueError(
            f"{len(pairs)} rotary_pairs are {2 * len(pairs)} rotary_dims, and {arch.rotary_dims} are given: leave "
            "rotary_dims out"
        )


def mixture(arch: Architecture) -> None:
    """Where layers differ there is one entry for each, and none shares with its neighbours or recurs."""
    for name in ("layer_variants", "layer_latents"):
        given = getattr(arch, name)
        if given and len(given) != arch.layers:
            raise ValueError(f"{name} has {len(given)} entries for {arch.layers} layers: give one for each")
    for chosen in arch.variants:
        if chosen.row_layers > 1 or chosen.matrix_layers > 1 or chosen.recurrence is not Recurrence.NONE:
            raise ValueError(f"{chosen} shares among layers or keeps a state, and layers of their own variants cannot")
    for number, (chosen, latent) in enumerate(zip(arch.variants, arch.layer_latents, strict=False)):
        if (latent > 0) != chosen.latent:
            raise ValueError(
                f"layer {number} is {chosen} with a latent of {latent} dims: give dims where the variant is MLA, and 0 "
                "elsewhere"
            )
    if arch.latent_dims and not any(one.latent for one in arch.variants):
        raise ValueError(f"latent_dims are for MLA, and no layer is: leave them out ({arch.described})")
    _ = arch.each  # made, and so checked: each layer's sizes have to fit as well


def variant(arch: Architecture) -> None:
    """The variant can be a causal decoder of these sizes."""
    chosen = arch.variant
    if chosen.position_term is not PositionTerm.NONE:
        raise ValueError(
            f"{chosen}: the {chosen.position_term.value} term is for non-causal models, and this is a causal decoder. "
            f"Drop the {chosen.position_term.value}"
        )
    chosen.kv_heads_for(arch.heads)
    if (chosen.unprojected or chosen.nonlinear_query) and arch.heads * arch.head_dim != arch.width:
        raise ValueError(
            f"{chosen} puts the layer's input in the place of a projection, so that {arch.heads} heads × "
            f"{arch.head_dim} dims must be the width {arch.width}: leave head_dim out"
        )
    if arch.latent_dims and not chosen.latent:
        raise ValueError(f"latent_dims are for MLA, and the variant is {chosen}: leave them out")
    if arch.latent_dims < 0:
        raise ValueError(f"latent_dims must be at least 1, not {arch.latent_dims}")
    if not (arch.latent_norm or chosen.rotary_apart or chosen.latent):
        raise ValueError(f"latent_norm is for MLA and decoupled, and the variant is {chosen}: leave it out")
    if chosen.rank is not None and chosen.rank > min(arch.width, arch.heads * arch.head_dim):
        raise ValueError(
            f"{chosen}: a matrix from {arch.width} to {arch.heads * arch.head_dim} dims has no rank of {chosen.rank}: "
            "give a lower one, or drop it"
        )
    for name in ("qk_norm", "sinks", "softcap"):
        if getattr(arch, name) and arch.is_recurrent:
            raise ValueError(f"{name} cannot be combined with {chosen}, which has no softmax: leave it out")
    if arch.qk_norm and chosen.rotary_apart:
        raise ValueError(
            f"qk_norm cannot be combined with {chosen}: the rotary part of its keys is one for all heads, and a norm "
            "by head goes over whole keys. Leave it out, or use on_read"
        )


def layers(arch: Architecture) -> None:
    """A pattern has S, B and L only, S and B a window; layers that share rows share a window, and rows have a maker."""
    pattern, sharing = arch.layer_pattern, arch.variant
    if max(sharing.row_layers, sharing.matrix_layers) > arch.layers:
        raise ValueError(f"{sharing} shares among more layers than there are, {arch.layers}: give a smaller number")
    if set(pattern) - set("SBL"):
        raise ValueError(f"layer_pattern {pattern!r} may hold S (sliding window), B (blocks) and L (all tokens) only")
    if arch.window < 0:
        raise ValueError(f"window must be at least 1, or 0 for none, not {arch.window}")
    if set(pattern) & set("SB") and not arch.window:
        raise ValueError(
            f"layer_pattern {pattern!r} has layers with a window or blocks: give window, in tokens (in a configuration "
            "it is called sliding_window)"
        )
    if arch.window and not set(pattern) & set("SB"):
        raise ValueError(f"window {arch.window} is used by no layer of the pattern {pattern!r}: leave it out")
    if arch.window and arch.is_recurrent:
        raise ValueError(f"{arch.variant} keeps a state and no tokens, so a window means nothing: leave it out")
    for layer, owner in enumerate(arch.row_owners):
        if arch.windows[layer] != arch.windows[owner]:
            raise ValueError(
                f"layer {layer} reads the rows of layer {owner}, and the pattern {pattern!r} gives them different "
                f"windows: repeat each letter {arch.variant.row_layers} times"
            )
        if owner == layer and arch.row_owners[arch.matrix_owners[layer]] != arch.matrix_owners[layer]:
            raise ValueError(
                f"layer {layer} makes rows with the projections of layer {arch.matrix_owners[layer]}, which reads "
                f"another's rows and has none for them: make one number in {arch.variant} a multiple of the other"
            )
