"""How much an error of keys and values matters: to the scores that queries take, and to what the output adds up.

The plain norm lets the longer of keys and values decide, and counts dims that no query asks for like those that all do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from twofold.attention.projections import NORM_EPSILON
from twofold.attention.rotary import rotate, rotation
from twofold.conversion.layer_maps import LayerMaps, root_of
from twofold.conversion.rotary_importance import Text
from twofold.explain.sharing import Inputs, Rows

DISTANCES = (0, 1, 2, 3, 5, 8, 13, 21, 34)
FLOOR = 1e-4


class Importance(NamedTuple):
    """An error δ of head g's key counts δᵀ `key_GDD`[g] δ, one of its value δᵀ `value_GDD`[g] δ; both symmetric."""

    key_GDD: Tensor  # noqa: N815
    value_GDD: Tensor  # noqa: N815


class Roots(NamedTuple):
    """[R, R] each, of keys and of values: S with S Sᵀ the importance, heads as blocks, and S⁻¹."""

    key_RR: Tensor  # noqa: N815
    value_RR: Tensor  # noqa: N815
    key_back_RR: Tensor  # noqa: N815
    value_back_RR: Tensor  # noqa: N815

    def weighed(self, maps: LayerMaps) -> Rows:
        """Keys and values whose plain squared error is what it counts."""
        return Rows(self.key_RR @ maps.key_RM, self.value_RR @ maps.value_RM)


def importance(maps: LayerMaps, inputs: Inputs, text: Text, distances: Sequence[int] = DISTANCES) -> Importance:
    """What errors of this layer's keys and values cost, with as much in all for keys as for values.

    - An error δ of a key changes the score of query q at distance n by q·R₋ₙ δ, where rotary R turns all D dims. Its
      square, summed over the query heads that read the head and meant over queries and `distances`, is δᵀ P δ with
      P = Σ_h E (R_n q)(R_n q)ᵀ. The distances are near ones, where most heads look. Where the text's base is None
      nothing turns, and P = Σ_h E q qᵀ.
    - Where queries and keys have norms, q is the normalised query, over the text's own inputs, and an error δ of the
      key before its norm counts as γ ⊙ δ / √(E k·k / D), γ the norm's weights: all keys of a head as if of one length.
      To first order a norm lets no error along the key itself through. That is left out: a latent may drop a direction
      whole, which is no small error.
    - An error δ of a value changes the output by W_O,h δ times what it is weighed with: P = Σ_h W_O,hᵀ W_O,h.
    - A score and an output have no common unit, so that each role is scaled to E kᵀ P k = 1 over all its heads.
    """
    root_MN, by_head = root_of(inputs), (maps.kv_heads, -1, maps.head_dim)
    query_1NHD = _queries(maps, root_MN, text)
    key_GDD = query_1NHD.new_zeros(maps.kv_heads, maps.head_dim, maps.head_dim)
    for asked_1NHD in _asked(query_1NHD, text.base, distances):
        asked_GND = asked_1NHD[0].transpose(0, 1).reshape(by_head)
        key_GDD += asked_GND.mT @ asked_GND
    if maps.norms:
        factor_GD = _key_factors(maps.norms.key_D, (maps.key_RM @ root_MN).unflatten(0, (maps.kv_heads, -1)))
        key_GDD *= factor_GD[:, :, None] * factor_GD[:, None]
    written_GMD = maps.output_MR.T.reshape(maps.heads, maps.head_dim, -1).mT.reshape(by_head)
    return Importance(
        _scaled(key_GDD, maps.key_RM @ root_MN), _scaled(written_GMD.mT @ written_GMD, maps.value_RM @ root_MN)
    )


def roots(known: Importance) -> Roots:
    """Symmetric roots, where nothing counts less than 1e-4 of the most that a direction of that role does.

    Queries are known from some tokens alone: what none of them asks for must not be lost at will.
    """
    (key_RR, key_back), (value_RR, value_back) = (_root(one) for one in known)
    return Roots(key_RR, value_RR, key_back, value_back)


def _queries(maps: LayerMaps, root_MN: Tensor, text: Text) -> Tensor:
    """[1, N, H, D] before rotary, with Σ_n q qᵀ what E q qᵀ is over tokens. A norm asks for the tokens themselves."""
    if maps.norms is None:
        return (maps.query_RM @ root_MN).T.unflatten(1, (maps.heads, -1))[None]
    x_NM = text.x_BTM.flatten(0, 1).double()
    query_NHD = (x_NM @ maps.query_RM.T).unflatten(1, (maps.heads, -1))
    normed_NHD = F.rms_norm(query_NHD, query_NHD.shape[2:], maps.norms.query_D, NORM_EPSILON)
    root_HND = torch.linalg.qr(normed_NHD.transpose(0, 1), mode="r").R  # D for all tokens, that are turned many times
    return root_HND.transpose(0, 1)[None] / len(x_NM) ** 0.5


def _key_factors(weight_D: Tensor, key_GDN: Tensor) -> Tensor:
    """[G, D]: what an error of a head's key is multiplied with by its norm, in the mean; 0 for keys that are 0."""
    square_G1 = key_GDN.square().sum(2).mean(1, keepdim=True)
    return torch.where(square_G1 > 0, weight_D * (square_G1 + NORM_EPSILON).rsqrt(), 0)


def _asked(query_1NHD: Tensor, base: float | None, distances: Sequence[int]) -> Iterator[Tensor]:
    """The queries as they stand at these distances to a key; once where nothing turns."""
    if base is None:
        yield query_1NHD
        return
    for distance in distances:
        by = rotation(torch.tensor([[distance]]), query_1NHD.shape[-1], base, torch.float64)
        yield rotate(query_1NHD, by)


def _scaled(weight_GDD: Tensor, made_RN: Tensor) -> Tensor:
    made_GDN = made_RN.unflatten(0, (len(weight_GDD), -1))
    whole = (made_GDN * (weight_GDD @ made_GDN)).sum()
    return weight_GDD / whole if whole > 0 else weight_GDD


def _root(weight_GDD: Tensor) -> tuple[Tensor, Tensor]:
    values_GD, vectors_GDD = torch.linalg.eigh(weight_GDD)
    most = values_GD.max()
    kept_GD = values_GD.clamp_min(FLOOR * most).sqrt() if most > 0 else torch.ones_like(values_GD)
    pair = ((vectors_GDD * scale_GD[:, None]) @ vectors_GDD.mT for scale_GD in (kept_GD, 1 / kept_GD))
    root_RR, back_RR = (torch.block_diag(*one) for one in pair)
    return root_RR, back_RR
