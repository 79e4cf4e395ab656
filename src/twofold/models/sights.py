"""What the layers of one forward pass have in common: how far they see, and how rows and queries are turned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    find_packed_sequence_indices,
)

from twofold.attention.cross import MemorySpan, memory_span
from twofold.attention.decoding import DecodeMask, decode_mask
from twofold.attention.recurrent import TokenMask
from twofold.attention.rotary import Rotation, frequencies, rotation
from twofold.attention.treatments import turned_on_read
from twofold.kernels.decode_native import MOST_POSITIONS
from twofold.models.architecture import Architecture, Reach
from twofold.models.configuration import TwofoldConfig
from twofold.variants.tensors import makes_keys

WITH_MASKS = ("eager", "sdpa", "flex_attention")
"""Attention implementations that take what a layer with a window or with blocks sees as a mask."""


class Sight(NamedTuple):
    """What layers of one reach see: a mask, or that of a decode step, and what turns keys that are kept unturned."""

    mask: Tensor | DecodeMask | TokenMask | None
    row_rotation: Rotation | None = None


def sights(
    config: TwofoldConfig,
    sizes: Architecture,
    x_BTM: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    positions_BT: Tensor,
    by: Sequence[Rotation | None],
) -> tuple[Sight, ...]:
    """What each layer sees; `by` turns its queries. `attention_mask` and positions as for the model.

    `sizes` are the configuration's, which would take longer to make than a short context to read.

    Raises ValueError for an attention implementation that does not take masks, where a layer needs one.
    """
    reaches = set(sizes.reaches)
    if sizes.is_recurrent:
        return (Sight(_token_mask(attention_mask, cache, positions_BT, len(x_BTM))),) * sizes.layers
    _require_masks(config, reaches)
    masks = {reach: _mask(config, x_BTM, attention_mask, cache, positions_BT, reach) for reach in reaches}
    made = []
    for number, (one, reach) in enumerate(sizes.kinds):
        turned = by[sizes.kind_of.index(number)]
        on_read = turned is not None and turned_on_read(one.variant)
        of_rows = _row_rotation(one, attention_mask, cache, positions_BT, turned, reach.window) if on_read else None
        made.append(Sight(masks[reach], of_rows))
    return tuple(made[number] for number in sizes.kind_of)


def decode_sights(
    config: TwofoldConfig,
    sizes: Architecture,
    x_BTM: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    positions_BT: Tensor,
) -> tuple[Sight, ...] | None:
    """`sights` of a decode step that a kernel takes; None for any other. Arguments and errors as there.

    Asked for first, since most steps need neither a mask tensor nor a rotation of their own.
    """
    if sizes.is_recurrent:
        return None
    on_read = [one.rotated_dims > 0 and turned_on_read(one.variant) for one, _ in sizes.kinds]
    if any(on_read) and cache is not None and not torch.compiler.is_compiling():
        _require_counted(cache, attention_mask, positions_BT)
    if config._attn_implementation != "sdpa" or sizes.sinks or any(reach.block for _, reach in sizes.kinds):
        return None
    if any(makes_keys(one.variant, one.rotated_dims, one.qk_norm) for one, _ in sizes.kinds):
        return None  # keys have yet to be made
    made = []
    for turned, (one, reach) in zip(on_read, sizes.kinds, strict=True):
        step = decode_mask(
            x_BTM,
            attention_mask,
            cache,
            one.row_layout,
            positions_BT=positions_BT,
            frequencies=frequencies(one.rotated_dims, one.rotary_base, x_BTM.device) if turned else None,
            windows=any(reach.window for _, reach in sizes.kinds),
        )
        if step is None:
            return None
        made.append(Sight(step._replace(window=reach.window)))
    return tuple(made[number] for number in sizes.kind_of)


def _require_counted(cache: Cache, attention_mask: Tensor | None, positions_BT: Tensor) -> None:
    """Raise ValueError unless cached and new positions count the tokens, from any number on.

    Rows that are turned when they are read do not say where they stand: it is counted back from the new tokens.
    """
    cached, new = cache.get_seq_length(), positions_BT.shape[1]
    if attention_mask is not None and attention_mask.ndim == 2:
        real_BS = attention_mask.bool()
        shift_BT = (positions_BT - (real_BS.cumsum(dim=1) - 1)[:, -new:])[real_BS[:, -new:]]
    else:
        shift_BT = positions_BT - torch.arange(cached, cached + new, device=positions_BT.device)
    shifts = shift_BT.unique().tolist()
    known = shifts if cached == 0 else getattr(cache, "position_shifts", shifts)
    if cached and (len(known) > 1 or len({*known, *shifts}) > 1):
        raise ValueError(
            "on_read turns cached keys by counting back from the new tokens, and these position_ids leave gaps or begin"
            " elsewhere: leave position_ids out, or use derotated, kept or decoupled"
        )
    cache.position_shifts = known


def _require_masks(config: TwofoldConfig, reaches: set[Reach]) -> None:
    implementation = config._attn_implementation or "eager"
    if implementation not in WITH_MASKS and reaches != {Reach()}:
        raise ValueError(
            f"attn_implementation {implementation!r} takes no mask of the model's own, which the layers of the pattern "
            f"{config.layer_pattern!r} need: use {', '.join(WITH_MASKS)}"
        )


def _token_mask(
    attention_mask: Tensor | None, cache: Cache | None, positions_BT: Tensor, batch: int
) -> TokenMask | None:
    """What a recurrence must know of the new tokens; documents from their positions, where transformers sees them."""
    if attention_mask is None:
        documents_BT = None if cache is not None else find_packed_sequence_indices(positions_BT.expand(batch, -1))
        return None if documents_BT is None else TokenMask(documents_BT=documents_BT)
    if attention_mask.ndim != 2:
        raise ValueError(
            f"linear attention reads all tokens before, and this attention_mask of {attention_mask.ndim} dimensions "
            "says otherwise: give one [B, S] that says which are padding"
        )
    return TokenMask(attention_mask[:, -positions_BT.shape[1] :].bool())


def _mask(
    config: TwofoldConfig,
    x_BTM: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    positions_BT: Tensor,
    reach: Reach,
) -> Tensor | None:
    create = create_causal_mask if reach.window is None else create_sliding_window_causal_mask
    return create(
        config=config,
        inputs_embeds=x_BTM,
        attention_mask=attention_mask,
        cache=cache,
        position_ids=positions_BT,
        and_mask_function=None if reach.block is None else blocks_overlay(reach.block, attention_mask),
    )


def blocks_overlay(block: int, attention_mask: Tensor | None) -> Callable[..., Tensor]:
    """A mask function, to go on top of a causal one: a query sees its own block, the one before and the first.

    Blocks are `block` tokens each. With `attention_mask` [B, S] they are counted without padding, so that a padded
    sequence sees what it sees alone; without, from each document's first token where transformers finds several.
    Global blocks are those of BigBird (arXiv 2007.14062, section 2), of which a causal model has the first alone.
    """
    number_BS = None
    if attention_mask is not None and attention_mask.ndim == 2:
        number_BS = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)

    def sees(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        query, key = (
            (q_idx, kv_idx) if number_BS is None else (number_BS[batch_idx, q_idx], number_BS[batch_idx, kv_idx])
        )
        of_query, of_key = query // block, key // block
        return (of_key >= of_query - 1) | (of_key == 0)

    return sees


def _row_rotation(
    sizes: Architecture,
    attention_mask: Tensor | None,
    cache: Cache | None,
    positions_BT: Tensor,
    by: Rotation | None,
    window: int | None,
) -> Rotation | None:
    """The rotation of all rows that a pass sees: cached ones stand before the new ones, with no gaps but padding."""
    cached = 0 if cache is None else cache.get_seq_length()
    if window is not None:
        cached = min(cached, window - 1)
    if cached == 0 or by is None:
        return by
    rows = cached + positions_BT.shape[1]
    real_BS = positions_BT.new_ones(1, rows)
    if attention_mask is not None and attention_mask.ndim == 2:
        real_BS = attention_mask[:, -rows:].long()
    count_BS = real_BS.cumsum(dim=1)
    before_BS = positions_BT[:, :1] + count_BS[:, :cached] - count_BS[:, cached : cached + 1]
    all_BS = torch.cat([before_BS, positions_BT.expand(len(before_BS), -1)], dim=1)
    return rotation(all_BS, sizes.rotated_dims, sizes.rotary_base, by.cos.dtype, sizes.rotary_exponents)


def memory_sight(config: TwofoldConfig, x_BTM: Tensor, memory_mask: Tensor | None) -> Tensor | MemorySpan | None:
    """What T query positions see of a memory, the same for all layers of a pass.

    `memory_mask` [B, S], 0 for padding; None for none. Up to 8 positions on a CPU get a span that a decode kernel
    takes, where "sdpa" is the implementation; others a mask as transformers makes it. Raises ValueError for a mask
    that does not fit, and, on a CPU, for a sequence that is padding only.
    """
    real_BS = None
    if memory_mask is not None:
        if memory_mask.ndim != 2 or len(memory_mask) != len(x_BTM):
            raise ValueError(
                f"the mask of a memory must be [B, S] for {len(x_BTM)} sequences, not {list(memory_mask.shape)}"
            )
        real_BS = memory_mask.to(x_BTM.device).bool()
    if x_BTM.is_cpu and not torch.compiler.is_compiling():
        if real_BS is not None and not bool(real_BS.any(dim=1).all()):
            raise ValueError("the memory of a sequence is padding only, so that there is nothing to read: leave it out")
        few = x_BTM.shape[1] <= MOST_POSITIONS and not config.sinks
        if config._attn_implementation == "sdpa" and few and (span := memory_span(real_BS)) is not None:
            return span
    return None if real_BS is None else create_bidirectional_mask(config, x_BTM, real_BS)
