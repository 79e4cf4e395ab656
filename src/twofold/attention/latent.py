"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values from one cached latent.

Head i's key is [W_UK,i c | k_r] and its value W_UV,i c, with c the normalised latent of a token and k_r a rotary key
that all heads share. Because q·(W_UK,i c) = (W_UK,iᵀ q)·c, decoding takes scores on the latent itself and makes one
value per query, instead of a key and a value per cached token and head. With many query positions making keys and
values costs less. Queries come from one matrix: the paper's second, low-rank one saves activations and no cache.

With fewer key/value heads than query heads, those of a group have one key and one value made for them. On read, there
is no rotary key: all dims of W_UK,i c are turned to the position when they are made, and before that normalised by head
where the model does that. Rotary, or the norm, then stands between W_UK and the query, so that nothing is absorbed, and
keys and values of all rows are made at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twofold.attention.projections import Projections, require_stackable, rotary_key, turned_query
from twofold.attention.rotary import Rotation, rotate
from twofold.attention.sources import linear
from twofold.attention.treatments import Made
from twofold.cache.kept import KeptRows
from twofold.variants.tensors import LayerSizes, makes_keys
from twofold.variants.variant import Variant


class LatentProjections(Projections):
    """`q_proj` [H·(D + r), M], `latent_proj` [c, M] with `latent_norm` or without, `k_rope_proj` [r, M], and from the
    latent `k_up_proj` and `v_up_proj` [G·D, c]. On read there is no rotary key, and r is 0 here; queries and keys may
    then be normalised by head, with `q_norm` and `k_norm` [D].
    """

    q_proj: nn.Linear
    latent_proj: nn.Linear
    latent_norm: nn.RMSNorm
    k_up_proj: nn.Linear
    v_up_proj: nn.Linear
    q_norm: nn.RMSNorm
    k_norm: nn.RMSNorm

    def _add_sources(self) -> None:
        if self.fused:
            require_stackable(self.variant, self.matrices)
        for name, matrix in self.matrices.items():
            if name != "o_proj":
                self.add_module(name, linear(matrix))

    def forward(self, x_BTM: Tensor, rotation: Rotation | None, borrows: bool = False) -> Made:
        """Queries [B, T, H, D + r], the latent as rows of one head, and the rotary key as their shared part."""
        assert not borrows
        query_BTHD = self.queries(x_BTM)
        if rotation is not None:
            query_BTHD = turned_query(query_BTHD, rotation, self.head_dim if self.variant.rotary_apart else 0)
        return Made(query_BTHD, *self.rows_of(x_BTM, rotation))

    def rows_of(self, x_BTM: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor | None]:
        """The latent as rows of one head, and the rotary key as their shared part."""
        shared_BTW = rotary_key(self.k_rope_proj, x_BTM, rotation) if self.variant.rotary_apart else None
        return self.latent(x_BTM).unsqueeze(2), shared_BTW

    def latent(self, x_BTM: Tensor) -> Tensor:
        """What keys and values are made from: [B, T, c], normalised where the model does that."""
        latent_BTC = self.latent_proj(x_BTM)
        return self.latent_norm(latent_BTC) if self.sizes.latent_norm else latent_BTC

    def queries(self, x_BTM: Tensor) -> Tensor:
        """[B, T, H, D + r] before rotary, normalised by head where the model does that."""
        query_BTHD = self.q_proj(x_BTM).unflatten(-1, (self.sizes.heads, -1))
        return self.q_norm(query_BTHD) if self.sizes.qk_norm else query_BTHD

    def keys(self, latent_BSC: Tensor) -> Tensor:
        """[B, S, G, D] before rotary, normalised by head where the model does that."""
        key_BSGD = self.k_up_proj(latent_BSC).unflatten(-1, (-1, self.head_dim))
        return self.k_norm(key_BSGD) if self.sizes.qk_norm else key_BSGD

    @property
    def score_heads(self) -> int:
        """Heads that have a key and a value made for them."""
        return self.variant.score_heads_for(self.sizes.heads)

    def reads_rows(self, positions: int, rows: int) -> bool:
        """Whether absorbing costs fewer multiply-accumulates than making S keys and values for every head.

        Per query head, halved, with the share G / H of a head to make: T·c·d + T·S·c absorbed, S·c·d·G/H + T·S·d
        expanded. Never where rotary or a norm stands between.
        """
        if makes_keys(self.variant, self.sizes.rotary_dims, self.sizes.qk_norm):
            return False
        latent, dim = self.sizes.latent_dims, self.head_dim
        made = latent * self.score_heads / self.sizes.heads
        return positions * latent * (dim + rows) < rows * dim * (made + positions)

    def absorbed(self, query_BTHD: Tensor) -> Tensor:
        """[B, T, H, D + r] to [B, T, H, c + r]: W_UK moves to the query."""
        content_BTHD, rotary_BTHD = query_BTHD.tensor_split([self.head_dim], dim=-1)
        made_HDC = self._by_head(self.k_up_proj, query_BTHD)
        return torch.cat([torch.einsum("bthd,hdc->bthc", content_BTHD, made_HDC), rotary_BTHD], -1)

    def released(self, read_BTHD: Tensor) -> Tensor:
        """[B, T, H, c], a mean of latents, to [B, T, H, D]: W_UV after the sum."""
        return torch.einsum("bthc,hdc->bthd", read_BTHD, self._by_head(self.v_up_proj, read_BTHD))

    def expanded(self, rows: KeptRows, row_rotation: Rotation | None = None) -> tuple[Tensor, Tensor]:
        """Keys [B, G, S, D + r] and values [B, G, S, D] of every head that has them made; on read turned here."""
        latent_BSW = rows.heads_BGSW.squeeze(1)
        key_BSGD = self.keys(latent_BSW)
        value_BGSD = self.v_up_proj(latent_BSW).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        if row_rotation is not None:
            key_BSGD = rotate(key_BSGD, row_rotation)
        key_BGSD = key_BSGD.transpose(1, 2)
        if rows.shared_BSW is not None:
            shared_BGSD = rows.shared_BSW[:, None].expand(*key_BGSD.shape[:3], -1)
            key_BGSD = torch.cat([key_BGSD, shared_BGSD], dim=-1)
        return key_BGSD, value_BGSD

    def _by_head(self, projection: nn.Module, like: Tensor) -> Tensor:
        """[H, D, c]: for each query head what its key/value head is made by, in the dtype of `like`."""
        if isinstance(projection, nn.Linear):
            weight = projection.weight
        else:  # an adapter around it, whose own matrix is not all that it does
            weight = projection(torch.eye(self.sizes.latent_dims, dtype=like.dtype, device=like.device)).mT
        weight_GDC = weight.unflatten(0, (self.score_heads, self.head_dim))
        return weight_GDC.repeat_interleave(self.sizes.heads // self.score_heads, dim=0)


def projections(variant: Variant, sizes: LayerSizes, *, fused: bool = False) -> Projections:
    """The seam of one layer."""
    return (LatentProjections if variant.latent else Projections)(variant, sizes, fused=fused)
