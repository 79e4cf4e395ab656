"""Sizes that make variants cost the same: cache, parameters, multiply-accumulates. Pure arithmetic, no torch.

At equal heads, variants differ in cache and parameters at once, and a comparison answers no question that anybody has
(arXiv 2606.04032 compares so). The cache is matched first, by key/value heads or by head dim; then parameters and
compute, which both have an MLP's width in them that the cache does not depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from twofold.analysis.costs import cache_bytes_per_token, macs, parameters
from twofold.models.architecture import Architecture

TOLERANCE = 0.005
CACHE_DTYPE = "float32"  # what studies train and cache in
CACHE_BY = ("heads", "head_dim")
COSTS = {
    "cache": "cached bytes per token",
    "parameters": "parameters",
    "compute": "multiply-accumulates of a window",
}


@dataclass(frozen=True)
class Targets:
    """What each model shall cost, `wanted` by a name of `COSTS`; compute is of one window of `context` tokens."""

    wanted: Mapping[str, int]
    context: int

    def __post_init__(self) -> None:
        for name, number in self.wanted.items():
            if name not in COSTS:
                raise ValueError(f"unknown cost {name!r}: choose from {', '.join(COSTS)}")
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")

    def costs(self, arch: Architecture) -> dict[str, int]:
        """What a model costs of what is wanted."""
        return {name: cost(name, arch, self.context) for name in self.wanted}

    def off(self, arch: Architecture, names: Iterable[str]) -> float:
        """The largest relative difference to what is wanted, either way, of these costs."""
        return max(abs(cost(name, arch, self.context) / self.wanted[name] - 1) for name in names)


def cost(name: str, arch: Architecture, context: int) -> int:
    """One cost of `COSTS`: bytes per token in float32, a count, or multiply-accumulates of `context` tokens."""
    if name == "cache":
        return cache_bytes_per_token(arch, CACHE_DTYPE)
    return parameters(arch)["total"] if name == "parameters" else macs(arch, context)["total"]


def matched(
    arch: Architecture, targets: Targets, cache_by: str = CACHE_BY[0], given: Collection[str] = ()
) -> Architecture:
    """`arch` with the sizes that bring it to `targets`, each within `TOLERANCE`.

    The cache is matched by `cache_by`: `heads` changes the key/value heads, and adds query heads where these must be
    a multiple; `head_dim` changes the dims of each head. Parameters and compute are matched by `mlp`. Fields in `given`
    stay as they are. Raises ValueError, with the nearest that can be had, where that is not near enough.
    """
    if cache_by not in CACHE_BY:
        raise ValueError(f"cache_by {cache_by!r} is unknown: choose {' or '.join(CACHE_BY)}")
    if "cache" in targets.wanted:
        if arch.is_recurrent:
            raise ValueError(
                f"{arch.variant} keeps a state of constant size, so it has no {COSTS['cache']} that could be matched: "
                "match parameters or compute only, or leave the variant out"
            )
        if {"window", "layer_pattern"} & set(given):
            raise ValueError(
                f"{arch.variant} with the pattern {arch.layer_pattern} keeps a smaller share of a longer text, so that "
                f"equal {COSTS['cache']} are no equal cache: match parameters or compute only, or give all variants "
                "the same window, under model"
            )
        candidates = _by_heads(arch, targets, given) if cache_by == "heads" else _by_head_dim(arch, targets, given)
        arch = _nearest(arch, candidates, targets, ["cache"], cache_by, given)
    rest = [name for name in targets.wanted if name != "cache"]
    if rest:
        arch = _nearest(arch, _by_mlp(arch, targets, rest, given), targets, rest, "mlp", given)
    return arch


def _by_heads(arch: Architecture, targets: Targets, given: Collection[str]) -> list[Architecture]:
    if arch.variant.latent or _is_rigid(arch):
        return [arch]
    if "heads" in given:
        every = (_with_kv_heads(arch, kv_heads) for kv_heads in range(1, arch.heads + 1))
        return [one for one in every if one.heads == arch.heads]
    numbers = _around(lambda kv_heads: cost("cache", _with_kv_heads(arch, kv_heads), 1), targets.wanted["cache"])
    return [_with_kv_heads(arch, kv_heads) for kv_heads in numbers]


def _with_kv_heads(arch: Architecture, kv_heads: int) -> Architecture:
    variant, heads = arch.variant.with_kv_heads(kv_heads, arch.heads)
    return replace(arch, variant=variant, heads=heads)


def _by_head_dim(arch: Architecture, targets: Targets, given: Collection[str]) -> list[Architecture]:
    if "head_dim" in given or _is_rigid(arch):
        return [arch]
    step = 1 if arch.learned_positions else 2  # rotary turns dims in pairs
    if arch.variant.needs_rotary_part and not arch.rotary_dims:
        step = 8  # a quarter or half of them, in pairs
    start = -(-arch.head_dim // step) * step
    dims = _around(lambda dim: cost("cache", replace(arch, head_dim=dim), 1), targets.wanted["cache"], step, start)
    return [replace(arch, head_dim=dim) for dim in dims if dim > arch.rotary_dims]


def _is_rigid(arch: Architecture) -> bool:
    """Whether heads and head dims follow from the width: some role is the input as it is."""
    return bool(arch.variant.unprojected) or arch.variant.nonlinear_query


def _by_mlp(arch: Architecture, targets: Targets, names: list[str], given: Collection[str]) -> list[Architecture]:
    """The widths around the one at which the relative differences cancel: with two costs, neither can get nearer."""
    if "mlp" in given:
        return [arch]

    def line(name: str) -> tuple[float, float]:
        return _line(lambda width: cost(name, replace(arch, mlp=width), targets.context), targets.wanted[name])

    shares = [line(name) for name in names]
    ideal = (len(names) - sum(start for start, _ in shares)) / sum(slope for _, slope in shares)
    return [replace(arch, mlp=width) for width in _neighbours(ideal)]


def _around(costs: Callable[[int], int], target: int, step: int = 1, start: int = 1) -> list[int]:
    """The multiples of `step` below and above the number at which a cost that grows linearly meets its target.

    Its line is drawn through `start` and twice that, where a model can be.
    """
    origin, slope = _line(lambda number: costs(number * start), target)
    return [number * step for number in _neighbours((1 - origin) / slope * start / step)]


def _line(costs: Callable[[int], int], target: int) -> tuple[float, float]:
    """Where a linear cost starts and how it grows, as shares of the target."""
    one, two = costs(1), costs(2)
    return (2 * one - two) / target, (two - one) / target


def _neighbours(number: float) -> list[int]:
    """Integers around a number, one more on each side for what float rounding may hide, and none below 1."""
    low = math.floor(number) - 1
    return sorted({max(1, low + offset) for offset in range(4)})


def _nearest(
    arch: Architecture,
    candidates: list[Architecture],
    targets: Targets,
    names: list[str],
    field: str,
    given: Collection[str],
) -> Architecture:
    """The candidate that comes nearest to the targets, `arch` itself where it is as near."""
    best = min(candidates, key=lambda one: (targets.off(one, names), one != arch))
    if targets.off(best, names) <= TOLERANCE:
        return best
    wanted = " and ".join(f"{targets.wanted[name]:,} {COSTS[name]}" for name in names)
    found = " and ".join(_difference(cost(name, best, targets.context), targets.wanted[name]) for name in names)
    fixed = f" ({field} is given and stays)" if field in given else ""
    hint = "Match to that" + {"heads": ", or by head_dim", "head_dim": ", or by heads"}.get(field, "")
    hint = "Match to that, or give latent_dims and rotary_dims" if arch.variant.latent else hint
    hint = f"Match to that, or leave {field} out" if field in given else hint
    hint = "Match one of the two alone" if len(names) > 1 else hint
    raise ValueError(
        f"{arch.variant} cannot be matched to {wanted} within {100 * TOLERANCE:g} % by {field}{fixed}: the nearest, "
        f"{_size(best, field)}, has {found}. {hint}"
    )


def _difference(number: int, target: int) -> str:
    more = 100 * (number / target - 1)
    return f"{number:,} ({abs(more):,.2f} % {'more' if more >= 0 else 'less'})"


def _size(arch: Architecture, field: str) -> str:
    if field == "heads":
        return f"{arch.kv_heads} key/value heads and {arch.heads} query heads of {arch.head_dim} dims"
    return f"{field} {getattr(arch, field)}"
