"""The slow twin's query, key and value of one head, variant by variant, as the papers write them; float64.

R_p multiplies, of the first r dims of a vector, the complex number x_j + i·x_{j+r/2} by exp(i·p·base^(−2j/r))
(arXiv 2104.09864).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from twofold.variants.choices import Treatment
from twofold.variants.variant import Variant

EPSILON = 1e-6  # of RMSNorm, in DeepSeek-V2 and Qwen3


@dataclass(frozen=True)
class Setting:
    """What the equations need beside the weights and the variant. `rotary_dims` None: all dims of a head; in a rotary
    key of its own, dim j turns as pair `rotary_pairs[j]` of a head of which all dims turn.
    """

    heads: int
    head_dim: int
    rotary_base: float | None = None
    rotary_dims: int | None = None
    rotary_pairs: tuple[int, ...] = ()
    exponent: float = 0.5
    softcap: float = 0.0
    window: int | None = None

    @property
    def turned(self) -> int:
        """r, 0 without rotary."""
        if self.rotary_base is None:
            return 0
        return self.head_dim if self.rotary_dims is None else self.rotary_dims


@dataclass(frozen=True)
class Head:
    """Query head `h` of one sequence x [T, M] at positions [T]; its key/value head is g = ⌊h·G/H⌋."""

    x_TM: Tensor  # noqa: N815
    weights: Mapping[str, Tensor]
    variant: Variant
    setting: Setting
    positions_T: Tensor  # noqa: N815
    h: int

    def query(self) -> Tensor:
        """[T, key dims].

        R_t q_t; with diagonal scales R_t (d_q ⊙ q_t) (arXiv 2412.00359). Beside a rotary key of its own it is
        [q_t of the content, R_t q_t of the rotary dims] (arXiv 2405.04434, equations 14 to 16).
        """
        dims = self.setting.head_dim
        if self._rotary_is_apart:
            content_TD, rotary_TR = self._of("q_proj", self.h, dims + self.setting.turned).split(
                [dims, self.setting.turned], dim=1
            )
            return torch.cat([content_TD, self._turned(rotary_TR)], dim=1)
        query_TD = self._vector("query", self.h)
        if "query_scale" in self.weights:
            query_TD = query_TD * self.weights["query_scale"][self.h * dims : (self.h + 1) * dims]
        return self._turned(query_TD)

    def key(self) -> Tensor:
        """[T, key dims].

        R_s k_s; with diagonal scales R_s (d_k ⊙ k_s), where both dims of a turned pair have one scale. Latent:
        [W_UK,g c_s, R_s W_KR x_s], on read R_s W_UK,g c_s, or R_s of its norm over the head (arXiv 2302.05442);
        decoupled: [content of head g, R_s W_KR x_s].
        """
        if self.variant.latent and not self._rotary_is_apart:
            return self._turned(self._normed("k_norm.weight", self._from_latent("k_up_proj")))
        if self.variant.latent:
            return torch.cat([self._from_latent("k_up_proj"), self._rotary_key()], dim=1)
        if self.variant.decoupled:
            return torch.cat([self._content("key"), self._rotary_key()], dim=1)
        key_TD = self._vector("key", self.g)
        if "key_scale" in self.weights:
            pairs = self.setting.turned // 2
            numbers = self.setting.head_dim - pairs
            scale = self.weights["key_scale"][self.g * numbers : (self.g + 1) * numbers]
            key_TD = key_TD * torch.cat([scale[:pairs], scale[:pairs], scale[pairs:]])
        return self._turned(key_TD)

    def value(self) -> Tensor:
        """[T, D]: what the weights sum.

        Of its own v_s, latent W_UV,g c_s. Where it is the key: derotated R_s k_s (arXiv 2606.19348); on read and kept
        k_s before rotary (arXiv 2607.02770); decoupled the content.
        """
        if self.variant.latent:
            return self._from_latent("v_up_proj")
        if self.variant.decoupled:
            return self._content("value")
        value_TD = self._vector("value", self.g)
        turned = self.variant.sharing.value_is_key and self.variant.treatment is Treatment.DEROTATED
        return self._turned(value_TD) if turned else value_TD

    def read(self, read_TD: Tensor) -> Tensor:
        """What position t passes on of what it read: derotated R_t⁻¹ of it; then with diagonal scales d_v ⊙ it."""
        if not self.variant.sharing.value_is_key:
            return read_TD
        if self.variant.treatment is Treatment.DEROTATED:
            read_TD = self._turned(read_TD, back=True)
        if "value_scale" in self.weights:
            dims = self.setting.head_dim
            read_TD = read_TD * self.weights["value_scale"][self.g * dims : (self.g + 1) * dims]
        return read_TD

    @property
    def g(self) -> int:
        """The key/value head."""
        kv_heads = self.setting.heads if self.variant.kv_heads is None else self.variant.kv_heads
        return self.h * kv_heads // self.setting.heads

    def _vector(self, role: str, head: int) -> Tensor:
        """Head `head` of a role's vector before scales and rotary; of x itself where it has no projection.

        A role without a matrix in `weights` takes the key's. Where there are norms over the head (arXiv 2302.05442),
        queries and keys have them, and so have all that share with the key.
        """
        dims, sharing = self.setting.head_dim, self.variant.sharing
        with_key = {"query": sharing.query_is_key, "key": True, "value": sharing.value_is_key}[role]
        owner = role if self._has(role) else "key"
        if owner in self.variant.unprojected:
            vector_TD = self.x_TM[:, head * dims : (head + 1) * dims]
        else:
            vector_TD = self._of(f"{owner[0]}_proj", head, dims)
        norm = "k_norm.weight" if with_key else f"{role[0]}_norm.weight"
        return _rms(vector_TD) * self.weights[norm] if norm in self.weights else vector_TD

    def _has(self, role: str) -> bool:
        """Whether a role has a projection of its own, or is said to be the input."""
        given = any(name.startswith(f"{role[0]}_proj.") for name in self.weights)
        return given or role in self.variant.unprojected

    def _of(self, name: str, head: int, dims: int) -> Tensor:
        return linear(name, self.x_TM, self.weights)[:, head * dims : (head + 1) * dims]

    def _from_latent(self, name: str) -> Tensor:
        """W_U,g c, c = RMSNorm(W_DKV x) (arXiv 2405.04434, equations 9 to 11), or W_DKV x alone."""
        latent_TC = self._normed("latent_norm.weight", linear("latent_proj", self.x_TM, self.weights))
        dims = self.setting.head_dim
        return latent_TC @ self.weights[f"{name}.weight"][self.g * dims : (self.g + 1) * dims].T

    def _normed(self, name: str, x_TC: Tensor) -> Tensor:
        return _rms(x_TC) * self.weights[name] if name in self.weights else x_TC

    @property
    def _rotary_is_apart(self) -> bool:
        """Whether a rotary key of its own stands beside the content."""
        latent = self.variant.latent and self.variant.treatment is not Treatment.ON_READ
        return latent or self.variant.decoupled

    def _content(self, role: str) -> Tensor:
        """Head g of RMSNorm(W_K x), normalised over all key/value heads together."""
        name = f"{role[0]}_proj" if self._has(role) else "k_proj"
        content_TC = self._normed("content_norm.weight", linear(name, self.x_TM, self.weights))
        dims = self.setting.head_dim
        return content_TC[:, self.g * dims : (self.g + 1) * dims]

    def _rotary_key(self) -> Tensor:
        return self._turned(linear("k_rope_proj", self.x_TM, self.weights))

    def _turned(self, x_TD: Tensor, back: bool = False) -> Tensor:
        """R_p x at each position p, or R_p⁻¹ x."""
        r, base = self.setting.turned, self.setting.rotary_base
        if base is None:
            return x_TD
        chosen = [2 * p / self.setting.head_dim for p in self.setting.rotary_pairs]
        exponents = chosen or [2 * j / r for j in range(r // 2)]
        frequencies_F = torch.tensor([base**-exponent for exponent in exponents], dtype=torch.float64)
        angles_TF = self.positions_T.double()[:, None] * frequencies_F
        turns_TF = torch.polar(torch.ones_like(angles_TF), -angles_TF if back else angles_TF)
        turned_TF = torch.complex(x_TD[:, : r // 2], x_TD[:, r // 2 : r]) * turns_TF
        return torch.cat([turned_TF.real, turned_TF.imag, x_TD[:, r:]], dim=1)


def linear(name: str, x_TM: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """W x + b, with W = W_up W_down where it is factored; the small network where that stands in W's place.

    The network is (x + LN(GELU(RMSNorm(x) W₁) W₂)) / 2 (arXiv 2603.13381).
    """
    if f"{name}.hidden.weight" in weights:
        inner_TF = _rms(x_TM) @ weights[f"{name}.hidden.weight"].T
        gelu_TF = inner_TF * (1 + torch.erf(inner_TF / 2**0.5)) / 2
        made_TM = linear(f"{name}.out", gelu_TF, weights)
        centred_TM = made_TM - made_TM.mean(dim=1, keepdim=True)
        return (x_TM + centred_TM / (centred_TM.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()) / 2
    if f"{name}.down.weight" in weights:
        matrix = weights[f"{name}.up.weight"] @ weights[f"{name}.down.weight"]
        bias = weights.get(f"{name}.up.bias")
    else:
        matrix, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    return x_TM @ matrix.T if bias is None else x_TM @ matrix.T + bias


def _rms(x_TN: Tensor) -> Tensor:
    return x_TN / (x_TN.square().mean(dim=1, keepdim=True) + EPSILON).sqrt()
