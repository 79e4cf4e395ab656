"""K=V by a map for each head: values are A times their head's key, and the output's matrix takes A up.

Since W_O,h Σ α A_g k = (W_O,h A_g) Σ α k, heads that read keys, before rotary turns them, have the same output as heads
that read values A k. What is lost is lost where values are replaced by A k.
"""

from __future__ import annotations

from twofold.conversion.layer_maps import LayerMaps, Shared, shared
from twofold.explain.sharing import Inputs, Rows, value_from_key


def values_from_keys(maps: LayerMaps, inputs: Inputs) -> Shared:
    """Tensors of `K=V [GQA-g] on_read`: G·D numbers per token.

    `q_proj` and `k_proj` as they were, so that no key is lost; of `o_proj` [M, H·D] the block of query head h is
    W_O,h A_g. A_g is the least-squares map from key to value on these inputs (`explain.sharing.value_from_key`). It is
    the best one also for what follows: the second moment of its error exceeds that of no other map in any direction,
    so no W_O would want another.
    """
    key_RM, value_RM = maps.key_RM, maps.value_RM
    made = value_from_key(Rows(key_RM, value_RM), inputs, maps.kv_heads)
    map_HDD = made.map_GDD.repeat_interleave(maps.heads // maps.kv_heads, dim=0)
    output_HMD = maps.output_MR.unflatten(1, (maps.heads, -1)).transpose(0, 1) @ map_HDD
    tensors = {"q_proj": maps.query_RM, "k_proj": key_RM, "o_proj": output_HMD.transpose(0, 1).flatten(1)}
    return shared(maps, key_RM, made.rows(Rows(key_RM, value_RM)).value_RM, inputs, tensors)
