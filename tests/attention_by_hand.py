"""Causal attention written out in float64, query by query and head by head, from a layer's tensors by name."""

import torch

from twofold.conversion.layer_maps import LayerMaps


def turned(vector_D, position, base, pairs, of_dims):
    """A vector whose half-split pairs are turned at frequencies base^(−2p / `of_dims`), p from `pairs`."""
    half = len(pairs)
    out = vector_D.clone()
    for at, pair in enumerate(pairs):
        angle = torch.tensor(position * base ** (-2 * pair / of_dims), dtype=torch.float64)
        first, second = vector_D[at], vector_D[at + half]
        out[at] = first * angle.cos() - second * angle.sin()
        out[at + half] = second * angle.cos() + first * angle.sin()
    return out


def attended(query_THW, key_TGW, value_TGD):
    """[T, H·D]: what each head reads; scores over the root of the key's width."""
    tokens, heads, width = query_THW.shape
    per_group = heads // key_TGW.shape[1]
    read = query_THW.new_zeros(tokens, heads, value_TGD.shape[-1])
    for at in range(tokens):
        for head in range(heads):
            group = head // per_group
            scores = key_TGW[: at + 1, group] @ query_THW[at, head] / width**0.5
            read[at, head] = scores.softmax(0) @ value_TGD[: at + 1, group]
    return read.flatten(1)


def by_head(matrix, x_TM, heads):
    return (x_TM @ matrix.T).unflatten(1, (heads, -1))


def all_turned(vectors_THD, base, skip=0, pairs=None, of_dims=None):
    """Each head's vector turned at its own position, but for its first `skip` dims."""
    width = vectors_THD.shape[-1] - skip
    pairs, of_dims = range(width // 2) if pairs is None else pairs, of_dims or width
    out = vectors_THD.clone()
    for at, heads in enumerate(vectors_THD):
        for head, vector in enumerate(heads):
            out[at, head, skip:] = turned(vector[skip:], at, base, pairs, of_dims)
    return out


def rotary_layer(tensors, x_TM, heads, kv_heads, base):
    """[T, M]: `QKV GQA-g` with full rotary."""
    query, key = by_head(tensors["q_proj"], x_TM, heads), by_head(tensors["k_proj"], x_TM, kv_heads)
    value = by_head(tensors["v_proj"], x_TM, kv_heads)
    return attended(all_turned(query, base), all_turned(key, base), value) @ tensors["o_proj"].T


def own_layer(maps: LayerMaps, x_TM, base):
    """[T, M]: the layer whose maps these are."""
    tensors = dict(zip(("q_proj", "k_proj", "v_proj", "o_proj"), maps[:4], strict=True))
    return rotary_layer(tensors, x_TM, maps.heads, maps.kv_heads, base)


def apart_layer(tensors, x_TM, maps: LayerMaps, base, pairs):
    """[T, M]: `GQA-g MLA` or, where there is no latent, `K=V GQA-g decoupled`, without norms."""
    dims, made = maps.head_dim, x_TM
    if "latent_proj" in tensors:
        made = x_TM @ tensors["latent_proj"].T
        content, value = (
            by_head(tensors["k_up_proj"], made, maps.kv_heads),
            by_head(tensors["v_up_proj"], made, maps.kv_heads),
        )
    else:
        content = value = by_head(tensors["k_proj"], made, maps.kv_heads)
    query = all_turned(by_head(tensors["q_proj"], x_TM, maps.heads), base, dims, pairs, dims)
    rotary = all_turned((x_TM @ tensors["k_rope_proj"].T)[:, None], base, 0, pairs, dims)
    key = torch.cat([content, rotary.expand(-1, maps.kv_heads, -1)], dim=-1)
    return attended(query, key, value) @ tensors["o_proj"].T


def plain_names(shared):
    """A conversion's tensors by role."""
    return {name.removesuffix(".weight"): one for name, one in shared.tensors.items()}
