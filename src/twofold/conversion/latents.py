"""Latents that keys and values share: a row of c numbers from which each head's key and value are made when read.

Keys are turned by rotary after they are made from the latent, so that any linear map may stand between, and what is
lost is lost by the rank alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from twofold.conversion.importance import Importance, roots
from twofold.conversion.layer_maps import LayerMaps, Shared, root_of, shared
from twofold.explain.sharing import Inputs, Rows, joint

Scope = Literal["all", "group", "head"]


def latents(
    maps: LayerMaps,
    inputs: Inputs,
    dims: int,
    scope: Scope = "all",
    groups: int = 1,
    counted: Importance | None = None,
) -> Shared:
    """Tensors of `GQA-g MLA on_read` without a norm of the latent: c = `dims` numbers per token.

    `latent_proj` [c, M], `k_up_proj` and `v_up_proj` [G·D, c]; `q_proj` and `o_proj` as they were. "all" is one latent
    of all key/value heads; "group" one for each of `groups` runs of neighbouring heads, and "head" one for each head,
    where up-projections are 0 outside their own latent. Each latent has an equal part of c and is the best of its size
    for its heads' keys and values on these inputs (`explain.sharing.joint`), so that "all" loses no more than "group",
    and that no more than "head". Nothing is lost with c = min(2·G·D, M) in all. (M counts the 1 that biases stand for.)

    Errors count as `counted` says (`importance.importance`), without it all alike, and "best" is in that measure;
    `Shared.lost` is the plain one always.

    Raises ValueError where c or G is no multiple of the latents' number, and for a latent wider than what it holds.
    """
    weighed = roots(counted) if counted else None
    parts = _parts(weighed.weighed(maps) if weighed else Rows(maps.key_RM, maps.value_RM), maps.kv_heads, scope, groups)
    share = _share_of(dims, len(parts))
    widest = min(2 * len(parts[0].key_RM), parts[0].key_RM.shape[1])
    if not 1 <= share <= widest:
        raise ValueError(
            f"{dims} dims in {len(parts)} latents: each has from 1 to {widest}, where it keeps all of its keys and "
            "values; ask for fewer, or leave the layer as it is"
        )
    made = [joint(part, inputs, share) for part in parts]
    down_CM = torch.cat([one.factor_NM for one in made])
    key_up, value_up = (
        torch.block_diag(*ups) for ups in zip(*((one.key_RN, one.value_RN) for one in made), strict=True)
    )
    if weighed:
        key_up, value_up = weighed.key_back_RR @ key_up, weighed.value_back_RR @ value_up
    tensors = {
        "q_proj": maps.query_RM,
        "latent_proj": down_CM,
        "k_up_proj": key_up,
        "v_up_proj": value_up,
        "o_proj": maps.output_MR,
    }
    return shared(maps, key_up @ down_CM, value_up @ down_CM, inputs, tensors)


def spectrum(
    maps: LayerMaps,
    inputs: Inputs,
    step: int = 1,
    scope: Scope = "all",
    groups: int = 1,
    counted: Importance | None = None,
) -> tuple[float, ...]:
    """What `latents` loses with 0, `step`, 2·`step`, … dims, to 2·G·D: a share, from 1 to 0.

    `Shared.lost` where all errors count alike; else the same with errors, keys and values as `counted` counts them.
    From one decomposition for each latent. Falling and convex, as singular values come by size. In the form that
    `budget.allocate` takes; times `energy`, the plain one is E‖[k; v] − [k'; v']‖² itself.

    Raises ValueError for a step below 1 or that the latents' number does not divide, and as `latents` does.
    """
    rows = roots(counted).weighed(maps) if counted else Rows(maps.key_RM, maps.value_RM)
    parts = _parts(rows, maps.kv_heads, scope, groups)
    share = _share_of(step, len(parts))
    if share < 1:
        raise ValueError(f"a step is at least 1 dim, not {step}")
    kept = [_tails(torch.cat(part[:2]), inputs) for part in parts]
    left = torch.stack(kept).sum(0)[::share]
    return tuple((left / left[0]).tolist()) if left[0] > 0 else (0.0,) * len(left)


def energy(maps: LayerMaps, inputs: Inputs) -> float:
    """E‖[k; v]‖² on these inputs: what `Shared.lost` is a share of."""
    return float((torch.cat([maps.key_RM, maps.value_RM]) @ root_of(inputs)).square().sum())


def _parts(rows: Rows, kv_heads: int, scope: Scope, groups: int) -> list[Rows]:
    """The maps that make the keys and values of each latent's heads."""
    count = {"all": 1, "group": groups, "head": kv_heads}[scope]
    if count < 1 or kv_heads % count:
        raise ValueError(
            f"{kv_heads} key/value heads do not fall into {count} equal groups: take a divisor of {kv_heads}"
        )
    return [Rows(*pair) for pair in zip(rows.key_RM.chunk(count), rows.value_RM.chunk(count), strict=True)]


def _share_of(dims: int, count: int) -> int:
    if dims % count:
        raise ValueError(f"{dims} dims do not fall to {count} latents in equal parts: take a multiple of {count}")
    return dims // count


def _tails(map_RM: Tensor, inputs: Inputs) -> Tensor:
    """[R + 1]: of E‖W x‖², what the best map of rank n leaves, for n from 0 to R."""
    rows, width = map_RM.shape
    squares = torch.linalg.svdvals(map_RM @ root_of(inputs))[:width].square()
    left = squares.flip(0).cumsum(0).flip(0)
    return torch.cat([left, left.new_zeros(rows + 1 - len(left))])
