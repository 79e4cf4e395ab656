"""The seam: everything that differs between variants. Hidden states become queries and rows here, and what the scores
read out of the rows becomes the layer's output here; nothing else asks which variant it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twofold.attention.rotary import Rotation, rotate, rotate_back
from twofold.variants.variant import Variant

MATRIX_NAMES = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
FUSED_NAME = "qkv_proj"


class Projections(nn.Module):
    """One matrix per distinct source of a role; roles that share have one parameter between them.

    Matrices are `q_proj` [H·D, M], `k_proj` and `v_proj` [G·D, M], those that the sharing needs; the shared one is
    always `k_proj`. `fused` stacks them, in that order, into one `qkv_proj`. `o_proj` [M, H·D] makes the output.
    """

    def __init__(
        self,
        variant: Variant,
        *,
        width: int,
        heads: int,
        head_dim: int,
        bias: bool = False,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.variant = variant
        self.head_dim = head_dim
        kv_heads = variant.kv_heads_for(heads)
        outputs = {"query": heads * head_dim, "key": kv_heads * head_dim, "value": kv_heads * head_dim}
        self.sizes = {role: outputs[role] for role in variant.sharing.matrices}
        self.fused = fused
        if fused:
            self.qkv_proj = nn.Linear(width, sum(self.sizes.values()), bias=bias)
        else:
            for role, size in self.sizes.items():
                self.add_module(MATRIX_NAMES[role], nn.Linear(width, size, bias=bias))
        self.o_proj = nn.Linear(heads * head_dim, width, bias=bias)

    def forward(self, x_BTM: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Queries [B, T, H, D] and rows [B, T, G, W], as `variant.row_layout(D)` lays them out.

        With a rotation, queries and keys are turned to their positions. A shared value is the turned key: `output`
        turns back what was read, so that only relative positions matter (DeepSeek-V4, arXiv 2606.19348).
        """
        made = self._matrices(x_BTM)
        by_role = {role: made[source] for role, source in self.variant.sharing.sources.items()}
        query_BTHD, key_BTGD = by_role["query"], by_role["key"]
        if rotation is not None:
            key_BTGD = rotate(key_BTGD, rotation)
            query_BTHD = key_BTGD if self.variant.sharing.query_is_key else rotate(query_BTHD, rotation)
        if self.variant.sharing.value_is_key:
            return query_BTHD, key_BTGD
        return query_BTHD, torch.cat([key_BTGD, by_role["value"]], dim=-1)

    def output(self, read_BTHD: Tensor, rotation: Rotation | None) -> Tensor:
        """What each head read, [B, T, H, D], to the layer's output [B, T, M]."""
        if rotation is not None and self.variant.sharing.value_is_key:
            read_BTHD = rotate_back(read_BTHD, rotation)
        return self.o_proj(read_BTHD.flatten(2))

    def _matrices(self, x_BTM: Tensor) -> dict[str, Tensor]:
        if self.fused:
            made = self.qkv_proj(x_BTM).split(list(self.sizes.values()), dim=-1)
        else:
            made = [self.get_submodule(MATRIX_NAMES[role])(x_BTM) for role in self.sizes]
        return {role: part.unflatten(-1, (-1, self.head_dim)) for role, part in zip(self.sizes, made, strict=True)}
