"""The seam: everything that differs between variants. Hidden states become queries and rows here, and what the scores
read out of the rows becomes the layer's output here; nothing else asks which variant it is.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from twofold.attention.rotary import Rotation, rotate
from twofold.attention.sources import RoleNorm, linear, source
from twofold.attention.treatments import Made, row_maker
from twofold.cache.kept import KeptRows
from twofold.variants.choices import ROLES
from twofold.variants.tensors import MATRIX_NAMES, LayerSizes, matrices, vectors
from twofold.variants.variant import Variant

FUSED_NAME = "qkv_proj"
NORM_EPSILON = 1e-6  # of norms inside the seam: what DeepSeek-V2 and Qwen3 have there


class Projections(nn.Module):
    """One matrix per distinct source of a role; roles that share have one parameter between them.

    Matrices are `q_proj` [H·D, M], `k_proj` and `v_proj` [G·D, M], those that the sharing needs; the shared one is
    always `k_proj`. `fused` stacks them, in that order, into one `qkv_proj`. `o_proj` [M, H·D] makes the output.
    `variants.tensors` says what other tensors a variant has. Raises ValueError where there is nothing to stack.
    """

    qkv_proj: nn.Linear
    k_rope_proj: nn.Linear
    content_norm: nn.RMSNorm
    query_scale: nn.Parameter
    key_scale: nn.Parameter
    value_scale: nn.Parameter
    sinks: nn.Parameter | None

    def __init__(self, variant: Variant, sizes: LayerSizes, *, fused: bool = False) -> None:
        super().__init__()
        self.variant, self.sizes, self.fused = variant, sizes, fused
        self.head_dim = sizes.head_dim
        self.kv_heads = variant.kv_heads_for(sizes.heads)
        self.layout = variant.row_layout(sizes.head_dim, sizes.rotary_dims, sizes.latent_dims)
        self.maker = row_maker(variant)
        self.matrices = matrices(variant, sizes)
        plain = {role: self.matrices.get(name) for role, name in MATRIX_NAMES.items()}
        self.outputs = {role: matrix.outputs for role, matrix in plain.items() if matrix}
        self._add_sources()
        self.o_proj = linear(self.matrices["o_proj"])
        self._add_vectors(vectors(variant, sizes))

    def _add_sources(self) -> None:
        if self.fused:
            require_stackable(self.variant, self.matrices)
            stacked = [self.matrices[MATRIX_NAMES[role]] for role in self.outputs]
            self.qkv_proj = nn.Linear(self.sizes.width, sum(self.outputs.values()), bias=stacked[0].bias)
            return
        for name in (*MATRIX_NAMES.values(), "k_rope_proj"):
            if made := source(name, self.matrices):
                self.add_module(name, made)

    def _add_vectors(self, numbers: dict[str, int]) -> None:
        for name, count in numbers.items():
            module, dot, _ = name.partition(".")
            if dot:
                self.add_module(module, RoleNorm(count, eps=NORM_EPSILON))
            else:
                initial = torch.zeros(count) if name == "sinks" else torch.ones(count)
                self.register_parameter(name, nn.Parameter(initial))
        if "sinks" not in numbers:
            self.sinks = None

    def forward(self, x_BTM: Tensor, rotation: Rotation | None, borrows: bool = False) -> Made:
        """Queries [B, T, H, key dims] and rows, as `variant.row_layout` lays them out; none where the layer `borrows`.

        With a rotation, queries and keys are turned to their positions, by the variant's treatment.
        """
        made = self.roles(x_BTM, ("query",) if borrows else ROLES)
        if borrows:
            return Made(self._scaled_query(made["query"], rotation), None)
        turned_BTGD = self._turned_key(made["key"], rotation)
        query_is_turned = self.variant.sharing.query_is_key and not self.variant.diagonal
        query_BTHD = turned_BTGD if query_is_turned else self._scaled_query(made["query"], rotation)
        return Made(query_BTHD, *self._rows(made, turned_BTGD, x_BTM, rotation))

    def rows_of(self, x_BTM: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor | None]:
        """The rows [B, T, G, W] of `forward` and their shared part [B, T, W], without queries."""
        made = self.roles(x_BTM, ("key", "value"))
        return self._rows(made, self._turned_key(made["key"], rotation), x_BTM, rotation)

    @property
    def score_heads(self) -> int:
        """Heads of the keys and values that scores are taken on."""
        return self.kv_heads

    @property
    def key_dim(self) -> int:
        """Dims of a key, on which the scale of the scores depends."""
        return self.head_dim + (self.sizes.rotary_dims if self.variant.rotary_apart else 0)

    def reads_rows(self, positions: int, rows: int) -> bool:
        """Whether scores of T `positions` against S `rows` are best taken on rows as they are kept. Always, here."""
        return True

    def expanded(self, rows: KeptRows, row_rotation: Rotation | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values [B, heads, S, ·] made from rows, where `reads_rows` says that it costs less. Never, here."""
        raise NotImplementedError("these rows are keys and values as they are")

    def absorbed(self, query_BTHD: Tensor) -> Tensor:
        """The query that goes with rows as they are kept: the same."""
        return query_BTHD

    def released(self, read_BTHD: Tensor) -> Tensor:
        """What a head read of rows as they are kept, as values: the same."""
        return read_BTHD

    def output(self, read_BTHD: Tensor, rotation: Rotation | None) -> Tensor:
        """What each head read, [B, T, H, D], to the layer's output [B, T, M]."""
        read_BTHD = self.maker.read(read_BTHD, rotation)
        if self.variant.diagonal and self.variant.sharing.value_is_key:
            read_BTHD = read_BTHD * self._per_query_head(self.value_scale.unflatten(0, (self.kv_heads, -1)))
        return self.o_proj(read_BTHD.flatten(2))

    def _turned_key(self, key_BTGD: Tensor, rotation: Rotation | None) -> Tensor:
        """The key turned to its position, where rows or queries are that; else as it is, since nobody asks."""
        wanted = self.maker.keeps_turned or self.variant.sharing.query_is_key
        return rotate(key_BTGD, rotation) if wanted and rotation is not None else key_BTGD

    def _rows(
        self, made: dict[str, Tensor], turned_BTGD: Tensor, x_BTM: Tensor, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor | None]:
        if not self.variant.decoupled:
            return self.maker.rows(made["key"], turned_BTGD, made["value"], rotation), None
        return self.content(made["key"]), rotary_key(self.k_rope_proj, x_BTM, rotation)

    def content(self, key_BTGD: Tensor) -> Tensor:
        """What stands beside a rotary key, normalised over all heads together where the model does that."""
        if not self.sizes.latent_norm:
            return key_BTGD
        return self.content_norm(key_BTGD.flatten(2)).unflatten(2, (self.kv_heads, -1))

    def roles(self, x_BTM: Tensor, roles: tuple[str, ...]) -> dict[str, Tensor]:
        """The vectors of these roles, [B, T, heads, dims], before rotary."""
        sources = self.variant.sharing.sources
        owners = dict.fromkeys(sources[role] for role in roles)
        made = self._stacked(x_BTM) if self.fused else {}
        made |= {owner: self._vectors(owner, x_BTM) for owner in owners if owner not in made}
        if self.sizes.qk_norm:
            norms = {"query": "q_norm", "key": "k_norm"}
            made |= {role: self.get_submodule(norms[role])(made[role]) for role in norms if role in made}
        return {role: made[sources[role]] for role in roles}

    def _vectors(self, role: str, x_BTM: Tensor) -> Tensor:
        module = self._modules.get(MATRIX_NAMES[role])
        heads = self.sizes.heads if role == "query" else self.kv_heads
        return (x_BTM if module is None else module(x_BTM)).unflatten(-1, (heads, -1))

    def _stacked(self, x_BTM: Tensor) -> dict[str, Tensor]:
        made = self.qkv_proj(x_BTM).split(list(self.outputs.values()), dim=-1)
        return {role: part.unflatten(-1, (-1, self.head_dim)) for role, part in zip(self.outputs, made, strict=True)}

    def _scaled_query(self, query_BTHD: Tensor, rotation: Rotation | None) -> Tensor:
        """The query, turned, with the diagonal scales of its own and of the keys.

        A key's scale is moved here so that the row has none. It may be, since it is one number for both dims of a pair
        that rotary turns: then scaling and turning commute.
        """
        if self.variant.diagonal and self.variant.sharing.query_is_key:
            query_BTHD = query_BTHD * self.query_scale.unflatten(0, (self.sizes.heads, -1))
        if rotation is not None:
            query_BTHD = turned_query(query_BTHD, rotation, self.layout.key.width if self.layout.shared_key else 0)
        if self.variant.diagonal:
            query_BTHD = query_BTHD * self._per_query_head(self.key_factors())
        return query_BTHD

    def key_factors(self) -> Tensor:
        """[G, D]: for each rotated pair one number, which both of its dims have."""
        scale_GD, pairs = self.key_scale.unflatten(0, (self.kv_heads, -1)), self.sizes.rotary_dims // 2
        return torch.cat([scale_GD[:, :pairs], scale_GD], dim=-1)

    def _per_query_head(self, of_GD: Tensor) -> Tensor:
        return of_GD.repeat_interleave(self.sizes.heads // self.kv_heads, dim=0)


def turned_query(query_BTHD: Tensor, rotation: Rotation, content_dims: int) -> Tensor:
    """A query turned to its position: what lies behind `content_dims`, which are left alone."""
    if not content_dims:
        return rotate(query_BTHD, rotation)
    content_BTHD, rotary_BTHD = query_BTHD.tensor_split([content_dims], dim=-1)
    return torch.cat([content_BTHD, rotate(rotary_BTHD, rotation)], dim=-1)


def rotary_key(projection: nn.Module, x_BTM: Tensor, rotation: Rotation | None) -> Tensor:
    """The rotary key that all heads share, turned to its position: [B, T, r]."""
    assert rotation is not None, "an architecture without rotary has no rotary key"
    return rotate(projection(x_BTM)[:, :, None], rotation).squeeze(2)


def require_stackable(variant: Variant, names: Collection[str]) -> None:
    """Raise ValueError unless every projection but the output's is one plain matrix of a role."""
    others = set(names) - {*MATRIX_NAMES.values(), "o_proj"}
    if others or len(names) == 1:
        what = f"has {', '.join(sorted(others))}" if others else "has no projections"
        raise ValueError(f"{variant} {what}, which cannot be stacked into one matrix: leave fused_projections out")
