"""One attention layer in float64 as plain matrices: its maps, inputs, and attention with rotary written out."""

import torch

from twofold.conversion.layer_maps import layer_maps

HEADS, KV_HEADS, DIMS, WIDTH, TOKENS = 12, 6, 4, 61, 211


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small_maps(heads=HEADS, kv_heads=KV_HEADS, dims=DIMS, width=WIDTH):
    sizes = (heads * dims, width), (kv_heads * dims, width), (kv_heads * dims, width), (width, heads * dims)
    matrices = [drawn(*size, seed=seed) for seed, size in enumerate(sizes, start=11)]
    matrices[1] *= 1.7  # keys are longer than values
    return layer_maps(*matrices, heads=heads, kv_heads=kv_heads)


def correlated(tokens=TOKENS, width=WIDTH):
    """Inputs with a mean, of falling strength in directions that are no axes; [N, M]."""
    strength = torch.logspace(0, -2, width, dtype=torch.float64)
    return (drawn(tokens, width) * strength) @ drawn(width, width, seed=5) + drawn(width, seed=6) / 3


def turned(z_NHD, base=100.0):
    """By their place: i turns with i + D/2, by base^(−2i/D) radians a position."""
    half = z_NHD.shape[-1] // 2
    angle = torch.arange(len(z_NHD))[:, None, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    real, imag = z_NHD[..., :half], z_NHD[..., half:]
    return torch.cat([real * angle.cos() - imag * angle.sin(), imag * angle.cos() + real * angle.sin()], dim=-1)


def read(query_NHD, key_NGD, value_NGD):
    """What H causal heads read of G values at each of N tokens, rotary on the whole head; [N, H, D]."""
    many = query_NHD.shape[1] // key_NGD.shape[1]
    key_NHD, value_NHD = (one.repeat_interleave(many, dim=1) for one in (turned(key_NGD), value_NGD))
    scores = torch.einsum("nhd,shd->hns", turned(query_NHD), key_NHD) * query_NHD.shape[-1] ** -0.5
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return torch.einsum("hns,shd->nhd", scores.masked_fill(later, -torch.inf).softmax(-1), value_NHD)


def output(maps, x_NM):
    """The layer's own output; [N, M]."""
    made = [
        (x_NM @ weight.T).unflatten(1, (heads, -1))
        for weight, heads in zip(maps[:3], (maps.heads, maps.kv_heads, maps.kv_heads), strict=True)
    ]
    return read(*made).flatten(1) @ maps.output_MR.T
