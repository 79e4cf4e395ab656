"""Random decode steps in every layout, and the same attention written out naively in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from twofold.variants.layout import RowLayout

LAYOUTS = {
    "QKV": RowLayout.separate(24),
    "K=V": RowLayout.shared(40),
    "partial": RowLayout.partial(32, 8),
    "decoupled": RowLayout.decoupled(24, 16),
    "latent": RowLayout.latent(88, 8),
    "wide": RowLayout.shared(328),  # tiles of 16 rows, the fewest
}
ROWS = (1, 2, 7, 13, 31, 61, 97, 331, 1009)


@dataclass(frozen=True)
class Case:
    """Arguments of decode_attention, and the seed and sizes that they came from."""

    query: Tensor
    heads: Tensor
    shared: Tensor | None
    options: dict[str, Any]

    def __repr__(self) -> str:
        short = {name: list(o.shape) if isinstance(o, Tensor) and o.ndim > 1 else o for name, o in self.options.items()}
        strides = self.heads.stride(), None if self.shared is None else self.shared.stride()
        return f"{list(self.query.shape)} {list(self.heads.shape)} {self.heads.dtype} strides {strides} {short}"

    def arguments(self, **changed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.query, self.heads, self.shared), {**self.options, **changed}


def spans(layout: RowLayout) -> dict[str, Any]:
    return {"key": layout.key, "value": layout.value, "shared_key": layout.shared_key}


def make(
    layout: RowLayout,
    *,
    batch: int,
    groups: int,
    per_group: int,
    positions: int,
    rows: int,
    dtype: torch.dtype,
    seed: int,
) -> Case:
    """Queries in float32 and rows in `dtype`; int8 rows with scales that differ from row to row."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    query = normal(batch, groups * per_group, positions, layout.key_dim)
    heads, shared = normal(batch, groups, rows, layout.head_width), None
    options = spans(layout)
    if layout.shared_width:
        shared = normal(batch, rows, layout.shared_width)
    if dtype == torch.int8:
        options["scales_BGS"] = torch.rand(batch, groups, rows, generator=generator) / 40
        heads = (heads * 40).round().to(torch.int8)
        if shared is not None:
            options["shared_scales_BS"] = torch.rand(batch, rows, generator=generator) / 40
            shared = (shared * 40).round().to(torch.int8)
    shared = None if shared is None else shared.to(dtype)
    return Case(query, heads.to(dtype), shared, options)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Every layout and dtype, prime sizes, and any mixture of limits, window, softcap and turning on read."""
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    batch, groups = draw(st.integers(1, 3)), draw(st.sampled_from((1, 2, 3)))
    rows, positions = draw(st.sampled_from(ROWS)), draw(st.integers(1, 8))
    case = make(
        layout,
        batch=batch,
        groups=groups,
        per_group=draw(st.sampled_from((1, 2, 3, 7))),
        positions=positions,
        rows=rows,
        dtype=draw(st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.int8))),
        seed=draw(st.integers(0, 2**16)),
    )
    options = dict(case.options)
    if draw(st.booleans()):
        options["lengths_B"] = torch.tensor([draw(st.integers(0, rows)) for _ in range(batch)])
    if draw(st.booleans()):
        options["starts_B"] = torch.tensor([draw(st.integers(0, rows)) for _ in range(batch)])
    if draw(st.booleans()):
        options["window"] = draw(st.integers(1, rows + 3))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from((0.7, 5.0, 50.0)))
    if draw(st.booleans()):
        pairs = draw(st.integers(1, layout.key_dim // 2))
        options["frequencies"] = 10.0 ** -torch.linspace(0, 3, pairs, dtype=torch.float64)
        options["first_position"] = draw(st.sampled_from((0, 11, 100_003)))
    case = replace(case, options=options)
    return strided(case, draw(st.sampled_from(("contiguous", "capacity", "token-major"))))


def strided(case: Case, how: str) -> Case:
    """The same rows in other memory: inside a larger buffer full of NaN, or token by token."""
    if how == "contiguous":
        return case
    swap = (lambda t: t.transpose(1, -2)) if how == "token-major" else (lambda t: t)

    def moved(part: Tensor) -> Tensor:
        wanted = swap(part) if part.ndim == 4 else part
        buffer = torch.empty(wanted.shape[0], *(size + 5 for size in wanted.shape[1:]), dtype=part.dtype)
        buffer.fill_(77 if part.dtype == torch.int8 else torch.nan)
        view = buffer[(slice(None), *(slice(2, size + 2) for size in wanted.shape[1:]))]
        view.copy_(wanted)
        return swap(view) if part.ndim == 4 else view

    return replace(case, heads=moved(case.heads), shared=None if case.shared is None else moved(case.shared))


def reference(case: Case) -> Tensor:
    """The definition, one query position at a time, in float64 over the rows' exact numbers."""
    o = case.options
    query, heads = case.query.double(), case.heads.double()
    shared = None if case.shared is None else case.shared.double()
    if "scales_BGS" in o:
        heads = heads * o["scales_BGS"].double()[..., None]
        shared = shared if shared is None else shared * o["shared_scales_BS"].double()[..., None]
    batch, query_heads, positions, _ = query.shape
    groups = heads.shape[1]
    out = query.new_zeros(batch, query_heads, positions, o["value"][1] - o["value"][0])
    for b in range(batch):
        start = int(o["starts_B"][b]) if "starts_B" in o else 0
        length = int(o["lengths_B"][b]) if "lengths_B" in o else heads.shape[2]
        for t in range(positions):
            last = length - (positions - 1 - t)
            first = max(start, last - o["window"]) if o.get("window") else start
            if first >= last:
                continue
            at = torch.arange(first, last) - start + o.get("first_position", 0)
            part = None if shared is None else shared[b, first:last]
            for g in range(groups):
                its = slice(g * query_heads // groups, (g + 1) * query_heads // groups)
                out[b, its, t] = _read(query[b, its, t], heads[b, g, first:last], part, at, o)
    return out


def _read(query: Tensor, own: Tensor, shared: Tensor | None, positions: Tensor, o: dict[str, Any]) -> Tensor:
    key = own[:, slice(*o["key"])]
    if shared is not None:
        key = torch.cat([key, shared[:, slice(*o["shared_key"])]], dim=1)
    if "frequencies" in o:
        pairs = len(o["frequencies"])
        turned = torch.complex(key[:, :pairs], key[:, pairs : 2 * pairs]) * torch.exp(
            1j * positions[:, None].double() * o["frequencies"].double()
        )
        key = torch.cat([turned.real, turned.imag, key[:, 2 * pairs :]], dim=1)
    scores = query @ key.T * o.get("scale", query.shape[1] ** -0.5)
    if o.get("softcap"):
        scores = o["softcap"] * torch.tanh(scores / o["softcap"])
    return scores.softmax(dim=1) @ own[:, slice(*o["value"])]
