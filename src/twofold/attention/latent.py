"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values from one cached latent.

Head i's key is [W_UK,i c | k_r] and its value W_UV,i c, with c the normalised latent of a token and k_r a rotary key
that all heads share. Because q·(W_UK,i c) = (W_UK,iᵀ q)·c, decoding takes scores on the latent itself and makes one
value per query, instead of a key and a value per cached token and head. With many query positions making keys and
values costs less. Queries come from one matrix: the paper's second, low-rank one saves activations and no cache.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twofold.attention.projections import Projections, require_stackable, rotary_key, turned_query
from twofold.attention.rotary import Rotation
from twofold.attention.sources import linear
from twofold.attention.treatments import Made
from twofold.cache.kept import KeptRows
from twofold.variants.tensors import LayerSizes
from twofold.variants.variant import Variant


class LatentProjections(Projections):
    """`q_proj` [H·(D + r), M], `latent_proj` [c, M] with `latent_norm`, `k_rope_proj` [r, M], and from the latent
    `k_up_proj` and `v_up_proj` [H·D, c].
    """

    q_proj: nn.Linear
    latent_proj: nn.Linear
    latent_norm: nn.RMSNorm
    k_up_proj: nn.Linear
    v_up_proj: nn.Linear

    def _add_sources(self) -> None:
        if self.fused:
            require_stackable(self.variant, self.matrices)
        for name in ("q_proj", "latent_proj", "k_rope_proj", "k_up_proj", "v_up_proj"):
            self.add_module(name, linear(self.matrices[name]))

    def forward(self, x_BTM: Tensor, rotation: Rotation | None, borrows: bool = False) -> Made:
        """Queries [B, T, H, D + r], the latent as rows of one head, and the rotary key as their shared part."""
        assert rotation is not None
        assert not borrows
        query_BTHD = self.q_proj(x_BTM).unflatten(-1, (self.sizes.heads, -1))
        return Made(turned_query(query_BTHD, rotation, self.head_dim), *self.rows_of(x_BTM, rotation))

    def rows_of(self, x_BTM: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor | None]:
        """The latent as rows of one head, and the rotary key as their shared part."""
        latent_BTGW = self.latent_norm(self.latent_proj(x_BTM)).unsqueeze(2)
        return latent_BTGW, rotary_key(self.k_rope_proj, x_BTM, rotation)

    @property
    def score_heads(self) -> int:
        """Every query head has a key and a value of its own."""
        return self.sizes.heads

    def reads_rows(self, positions: int, rows: int) -> bool:
        """Whether absorbing costs fewer multiply-accumulates than making S keys and values for every head.

        Per head, halved: T·c·d + T·S·c absorbed, S·c·d + T·S·d expanded.
        """
        latent, dim = self.sizes.latent_dims, self.head_dim
        return positions * latent * (dim + rows) < rows * dim * (latent + positions)

    def absorbed(self, query_BTHD: Tensor) -> Tensor:
        """[B, T, H, D + r] to [B, T, H, c + r]: W_UK moves to the query."""
        content_BTHD, rotary_BTHD = query_BTHD.tensor_split([self.head_dim], dim=-1)
        return torch.cat([torch.einsum("bthd,hdc->bthc", content_BTHD, self._by_head(self.k_up_proj)), rotary_BTHD], -1)

    def released(self, read_BTHD: Tensor) -> Tensor:
        """[B, T, H, c], a mean of latents, to [B, T, H, D]: W_UV after the sum."""
        return torch.einsum("bthc,hdc->bthd", read_BTHD, self._by_head(self.v_up_proj))

    def expanded(self, rows: KeptRows) -> tuple[Tensor, Tensor]:
        """Keys [B, H, S, D + r] and values [B, H, S, D] of every head."""
        assert rows.shared_BSW is not None
        latent_BSW = rows.heads_BGSW.squeeze(1)
        key_BHSD = self.k_up_proj(latent_BSW).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        value_BHSD = self.v_up_proj(latent_BSW).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return torch.cat([key_BHSD, rows.shared_BSW[:, None].expand(*key_BHSD.shape[:3], -1)], dim=-1), value_BHSD

    def _by_head(self, projection: nn.Linear) -> Tensor:
        """[H, D, c]."""
        return projection.weight.unflatten(0, (self.sizes.heads, self.head_dim))


def projections(variant: Variant, sizes: LayerSizes, *, fused: bool = False) -> Projections:
    """The seam of one layer."""
    return (LatentProjections if variant.latent else Projections)(variant, sizes, fused=fused)
