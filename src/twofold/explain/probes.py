"""What a linear map reads out of the queries, keys and values of a layer: the token itself, and the one before it.

An induction head needs a layer's keys to tell the token before and its values to tell the token itself (Olsson et al.
2022, arXiv 2209.11895): one vector for both has to serve two ends, and these numbers say whether it does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.explain.activation_similarity import random_roles
from twofold.explain.activations import LayerActivations
from twofold.explain.roles import Roles

Measures = dict[str, float | list[float]]
LETTERS = "qkv"
FEWEST = 4
"""Occurrences that a token needs to be one of the answers: two to fit and two to test."""
MOST_CLASSES = 32
RIDGES = tuple(10.0**power for power in range(-6, 3))
"""Strengths that are tried, as shares of the vectors' mean squared singular value."""


class Question(NamedTuple):
    """Which positions are asked, out of B · T, and the class of each; `fitted` are those that the probe learns from."""

    places_N: Tensor  # noqa: N815
    classes_N: Tensor  # noqa: N815
    fitted_N: Tensor  # noqa: N815
    classes: int

    @property
    def chance(self) -> float:
        """The share of tested positions whose answer is the class that is fitted most often."""
        most = self.classes_N[self.fitted_N].bincount(minlength=self.classes).argmax()
        return float((self.classes_N[~self.fitted_N] == most).double().mean())


def probe_measures(activations: LayerActivations, ids_BT: Tensor, seed: int) -> Measures:
    """How often a linear probe of q, k and v names a token: the position's own, and the one before it in its text.

    `probe_token_q`, `_k`, `_v` and `probe_previous_q`, `_k`, `_v`: the share of right answers on positions that the
    probe has not seen, from the vectors of all heads together, and in `_heads` [H] or [G] from one head's. Each has a
    `_random`: the same of matrices with normal entries on the same input (`activation_similarity.random_roles`). In
    `probe_token_chance` and `probe_previous_chance` the commonest token is always named. `probe_classes` are the tokens
    that can be named, at most `MOST_CLASSES`, the commonest with `FEWEST` occurrences or more; other positions are not
    asked. `probe_positions` are those tested for the token itself.

    The probe is `read_out`. Half of each class's positions, drawn by `seed`, are fitted, the others tested; the first
    position of a text has no token before it and is left out. NaN where fewer than two tokens come `FEWEST` times.
    Raises ValueError where `ids_BT` are not the tokens of the activations.
    """
    if ids_BT.shape != activations.x_BTM.shape[:2]:
        raise ValueError(
            f"the activations are of texts {list(activations.x_BTM.shape[:2])}, and the tokens {list(ids_BT.shape)}: "
            "give the tokens that the model read"
        )
    measured = Roles(activations.q_BTHD, activations.k_BTGD, activations.v_BTGD)
    drawn = random_roles(activations, seed)
    found: Measures = {}
    for name, labels_BT in (("token", ids_BT), ("previous", ids_BT.roll(1, dims=1))):
        asked = question(labels_BT, seed)
        found[f"probe_{name}_chance"] = math.nan if asked is None else asked.chance
        for ending, roles in (("", measured), ("_random", drawn)):
            for key, value in _of_roles(roles, asked).items():
                found[f"probe_{name}_{key}{ending}"] = value
        if name == "token":
            found["probe_classes"] = 0.0 if asked is None else float(asked.classes)
            found["probe_positions"] = 0.0 if asked is None else float((~asked.fitted_N).sum())
    return found


def question(labels_BT: Tensor, seed: int) -> Question | None:
    """The positions from 1 on whose label is among the commonest; None where fewer than two are common enough.

    Labels that are equally common go by their number.
    """
    labels_N = labels_BT.clone()
    labels_N[:, 0] = -1
    labels_N = labels_N.flatten()
    values, counts = labels_N[labels_N >= 0].unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:MOST_CLASSES]
    known = values[order[counts[order] >= FEWEST]]
    if len(known) < 2:
        return None
    places_N, classes_N = (labels_N[:, None] == known).nonzero(as_tuple=True)
    generator = torch.Generator().manual_seed(seed)
    fitted_N = torch.zeros(len(places_N), dtype=torch.bool)
    for one in range(len(known)):
        (of_class,) = (classes_N == one).nonzero(as_tuple=True)
        drawn = torch.randperm(len(of_class), generator=generator)[: len(of_class) // 2]
        fitted_N[of_class[drawn]] = True
    return Question(places_N, classes_N, fitted_N, len(known))


def read_out(vectors_NP: Tensor, asked: Question) -> float:
    """The share of tested positions that the best linear map names right.

    Ridge regression with an intercept from vectors to the one-hot class, in closed form (Hoerl and Kennard 1970,
    "Ridge regression"): W = (XᵀX + λI)⁻¹ XᵀY on the fitted positions, X and Y less their means. The class with the
    largest output is the answer. Of the λ in `RIDGES` the one whose squared error is least when each fitted position
    is left out in turn (Allen 1974, "PRESS"), so that many dims for few positions do no harm. Vectors that do not vary
    name the class that is fitted most often.
    """
    x = vectors_NP.double()
    target_NC = torch.nn.functional.one_hot(asked.classes_N, asked.classes).double()
    mean_P, mean_C = x[asked.fitted_N].mean(0), target_NC[asked.fitted_N].mean(0)
    fitted, target = x[asked.fitted_N] - mean_P, target_NC[asked.fitted_N] - mean_C
    left, values, right = torch.linalg.svd(fitted, full_matrices=False)
    strength = values.square().mean()
    along = left.T @ target
    best = min(RIDGES, key=lambda ridge: _left_out_error(left, values, along, target, ridge * strength))
    map_PC = right.T @ (_shrunk(values, best * strength)[:, None] * along)
    answers = ((x[~asked.fitted_N] - mean_P) @ map_PC + mean_C).argmax(-1)
    return float((answers == asked.classes_N[~asked.fitted_N]).double().mean())


def _left_out_error(left: Tensor, values: Tensor, along: Tensor, target: Tensor, ridge: Tensor) -> float:
    """Σ ‖y − ŷ without it‖² over the fitted positions: residuals of the whole fit over 1 − h, h of the hat matrix.

    The mean is one more direction of the hat matrix, 1/N for each position.
    """
    kept = values * _shrunk(values, ridge)
    missed = target - left @ (kept[:, None] * along)
    hat_N = left.square() @ kept + 1 / len(left)
    return float((missed / (1 - hat_N).clamp(min=1e-9)[:, None]).square().sum())


def _shrunk(values: Tensor, ridge: Tensor) -> Tensor:
    """σ / (σ² + λ); 0 where the vectors do not vary at all."""
    return torch.nan_to_num(values / (values.square() + ridge))


def _of_roles(roles: Roles, asked: Question | None) -> Measures:
    """What each role's vectors tell, of all heads and of each; one tensor for two roles is probed once."""
    found: Measures = {}
    done: dict[int, tuple[float, list[float]]] = {}
    for letter, role in zip(LETTERS, roles, strict=True):
        if id(role) not in done:
            done[id(role)] = _of_role(role, asked)
        found[letter], found[f"{letter}_heads"] = done[id(role)]
    return found


def _of_role(role_BTHD: Tensor, asked: Question | None) -> tuple[float, list[float]]:
    heads = role_BTHD.shape[2]
    if asked is None:
        return math.nan, [math.nan] * heads
    vectors_NHD = role_BTHD.flatten(0, 1)[asked.places_N]
    return read_out(vectors_NHD.flatten(1), asked), [read_out(vectors_NHD[:, head], asked) for head in range(heads)]
