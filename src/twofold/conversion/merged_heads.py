"""Key/value heads merged to fewer: each new one serves the query heads of a run of neighbouring old ones.

Pure functions of matrices and inputs: nothing here knows of models. Rotary turns all D dims of keys and queries, or
none of them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from twofold.conversion.layer_maps import LayerMaps, Shared, root_of, shared
from twofold.conversion.rotary_importance import pairs_of, rows_from, shareable
from twofold.conversion.weighted_latent import folded, readers, weighed, weighted_latent
from twofold.explain.sharing import Inputs

Method = Literal["mean", "low-rank"]


def merged_heads(
    maps: LayerMaps, inputs: Inputs, kv_heads: int, method: Method = "low-rank", *, turned: bool = True
) -> Shared:
    """Tensors of `QKV GQA-g` with g = `kv_heads`, which divides G: `q_proj` [H·D, M], `k_proj` and `v_proj` [g·D, M],
    `o_proj` [M, H·D]. 2·g·D numbers per token.

    "mean": the mean of the merged heads' keys and of their values (GQA, Ainslie et al., arXiv 2305.13245, section 2.1);
    queries and output as they were. "low-rank": for keys, in each rotary pair, the complex number that the heads share
    best, by what their queries see of it (`rotary_importance.shareable`); for values the best D dims of the heads'
    values one after another, by what the output sees (`weighted_latent`). Queries and output take up the maps, which
    for queries are complex factors that commute with rotary. Where keys are not `turned` they go as the values do, by
    what their queries see. Both leave a layer whose merged heads are equal as it is; "low-rank" also one where keys are
    complex multiples of one another in each pair, or not turned and linear maps of one head's, as values may be.

    Raises ValueError where g does not divide G.
    """
    if kv_heads < 1 or maps.kv_heads % kv_heads:
        raise ValueError(
            f"{maps.kv_heads} key/value heads do not merge to {kv_heads}: take a divisor of {maps.kv_heads}"
        )
    merged = [_mean(one) if method == "mean" else _low_rank(one, inputs, turned) for one in _groups(maps, kv_heads)]
    query, key, value, output, standing_key, standing_value = zip(*merged, strict=True)
    tensors = {
        "q_proj": torch.cat(query),
        "k_proj": torch.cat(key),
        "v_proj": torch.cat(value),
        "o_proj": torch.cat(output, dim=1),
    }
    return shared(maps, torch.cat(standing_key), torch.cat(standing_value), inputs, tensors)


def _groups(maps: LayerMaps, kv_heads: int) -> list[LayerMaps]:
    """The layers that the heads to be merged would be by themselves."""
    parts = (maps.query_RM.chunk(kv_heads), maps.key_RM.chunk(kv_heads), maps.value_RM.chunk(kv_heads))
    sizes = maps.heads // kv_heads, maps.kv_heads // kv_heads
    return [LayerMaps(*one, *sizes) for one in zip(*parts, maps.output_MR.chunk(kv_heads, dim=1), strict=True)]


def _mean(maps: LayerMaps) -> tuple[Tensor, ...]:
    """Query, key, value and output of one merged head, and what now stands for the old heads' keys and values."""
    key_DM, value_DM = (one.unflatten(0, (maps.kv_heads, -1)).mean(0) for one in (maps.key_RM, maps.value_RM))
    standing = (one.repeat(maps.kv_heads, 1) for one in (key_DM, value_DM))
    return maps.query_RM, key_DM, value_DM, maps.output_MR, *standing


def _low_rank(maps: LayerMaps, inputs: Inputs, turned: bool) -> tuple[Tensor, ...]:
    """As `_mean`."""
    query_RM, key_DM, standing_RM = (_turned_keys if turned else _still_keys)(maps, inputs)
    used = readers(maps.output_MR.T, maps.kv_heads, maps.head_dim)
    latent = weighted_latent(weighed(used, maps.value_RM), maps.value_RM, inputs, maps.head_dim)
    output_MR = folded(latent.up_RC.chunk(maps.kv_heads), maps.output_MR.T, maps.head_dim).T
    return query_RM, key_DM, latent.down_CM, output_MR, standing_RM, latent.made_RM


def _turned_keys(maps: LayerMaps, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, the key that they now meet, and what it makes of each old head's: one complex number in each pair."""
    never_HP = torch.zeros(maps.heads, maps.head_dim // 2, dtype=torch.complex128)
    found = shareable(maps, inputs, never_HP)
    key_1PM = torch.einsum("pg,gpm->pm", found.read_PG, pairs_of(maps.key_RM, maps.kv_heads))[None]
    write_GP1 = found.write_PG.T[..., None]
    write_HP1 = write_GP1.repeat_interleave(maps.heads // maps.kv_heads, dim=0)
    query_RM = rows_from(write_HP1.conj() * pairs_of(maps.query_RM, maps.heads))
    return query_RM, rows_from(key_1PM), rows_from(write_GP1 * key_1PM)


def _still_keys(maps: LayerMaps, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """As `_turned_keys`, for keys that no rotary turns: any D numbers, which queries take up by any map."""
    asked = readers(maps.query_RM @ root_of(inputs), maps.kv_heads, maps.head_dim)
    latent = weighted_latent(weighed(asked, maps.key_RM), maps.key_RM, inputs, maps.head_dim)
    query_RM = folded(latent.up_RC.chunk(maps.kv_heads), maps.query_RM, maps.head_dim)
    return query_RM, latent.down_CM, latent.made_RM
