"""Decode attention over shared rows: our kernel, which reads a row once, against torch's fused attention.

One call is one decode step of one layer: 16 query heads of 64 dims and one query position per sequence. Each
contender goes through several sets of rows in turn, so that it does not find them in the processor's caches, as a
step of a model with many layers does not. Rows lie in memory as our caches take it (`kernels.pages`), keys and values
of their own in torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from twofold.attention.scores import keys_and_values
from twofold.bench.record import Machine, Row
from twofold.bench.sizes import Effort, variants
from twofold.bench.timing import Contender, Watch, interleaved, rows, timed
from twofold.cache.kept import KeptRows
from twofold.kernels import pages
from twofold.kernels.decode import decode_attention
from twofold.variants.layout import RowLayout, cache_bytes, item_bytes
from twofold.variants.notation import parse

HEADS, HEAD_DIM = 16, 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
SCALE_BYTES = 4  # of an int8 row's part: one float32
AT_LEAST = 2**27  # bytes of rows that one contender goes through before it meets the first ones again
MOST_SETS = 64


class Case(NamedTuple):
    """Rows of one layer: variant, cached tokens, dtype, sequences."""

    variant: str
    context: int
    dtype: str
    batch: int

    @property
    def name(self) -> str:
        """attention/variant/tokens/dtype, and the batch where it is not 1."""
        batch = f"/batch-{self.batch}" if self.batch > 1 else ""
        return f"attention/{self.variant}/{self.context}/{self.dtype}{batch}"

    @property
    def kv_heads(self) -> int:
        """Key/value heads G."""
        return parse(self.variant).kv_heads_for(HEADS)

    @property
    def layout(self) -> RowLayout:
        """The row."""
        return parse(self.variant).row_layout(HEAD_DIM)

    @property
    def bytes(self) -> int:
        """Bytes of all rows, with their scales."""
        sizes = {"tokens": self.context, "batch": self.batch}
        scales = self.batch * self.context * self.kv_heads * SCALE_BYTES if self.dtype == "int8" else 0
        return cache_bytes(self.layout, self.kv_heads, itemsize=item_bytes(self.dtype), **sizes) + scales

    @property
    def operations(self) -> int:
        """Of scores and weighted sums, a multiply-accumulate counting twice."""
        return 4 * self.batch * HEADS * HEAD_DIM * self.context


def cases(quick: bool) -> list[Case]:
    """What is measured. Variants whose rows are equal (Q=K and QKV, Q=K=V and K=V) are measured once."""
    distinct = [name for name in variants(HEADS) if not parse(name).sharing.query_is_key]
    shared = [name for name in distinct if parse(name).sharing.value_is_key]
    if quick:
        return [Case(name, 32_768, dtype, 1) for dtype in DTYPES for name in shared]
    alone = [Case(name, tokens, dtype, 1) for tokens in (32_768, 131_072) for dtype in DTYPES for name in distinct]
    batches = ((8, 16_384), (32, 4_096))
    return alone + [Case(name, tokens, dtype, b) for b, tokens in batches for dtype in DTYPES for name in shared]


def measure(effort: Effort, machine: Machine, watch: Watch) -> tuple[list[Row], list[str]]:
    """A row for each case and alternative."""
    found: list[Row] = []
    wanted = cases(effort.quick)
    for number, case in enumerate(wanted):
        watch(number, len(wanted), case.name)
        times = interleaved(contenders(case), effort.repeats)
        roof = machine.roof_seconds(case.bytes, case.operations)
        found += rows(case.name, times, roof, variant=case.variant, context=case.context, bytes=case.bytes)
    watch(len(wanted), len(wanted), "")
    return found, []


def contenders(case: Case) -> dict[str, Contender]:
    """Our kernel over the rows; torch's attention over keys and values of their own, and over views of the same rows.

    torch's attention cannot read int8: beside such rows it gets what there would be without them, float32.
    """
    torch.manual_seed(0)
    dtype = torch.float32 if case.dtype == "int8" else DTYPES[case.dtype]
    query_BHTD = torch.randn(case.batch, HEADS, 1, HEAD_DIM, dtype=dtype)
    stored = [_rows(case) for _ in range(_sets(case.bytes))]
    shape = (case.batch, case.kv_heads, case.context, HEAD_DIM)
    count = _sets(2 * math.prod(shape) * dtype.itemsize)
    separate = [(torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)) for _ in range(count)]
    found = {
        "ours": _in_turn(lambda rows: kernel(case.layout, query_BHTD, *rows), stored),
        "torch SDPA, two tensors": _in_turn(lambda pair: fused(query_BHTD, *pair), separate),
    }
    if case.dtype != "int8":
        views = [keys_and_values(case.layout, KeptRows(heads_BGSW)) for heads_BGSW, _ in stored]
        found["torch SDPA, one tensor"] = _in_turn(lambda pair: fused(query_BHTD, *pair), views)
    return found


def kernel(layout: RowLayout, query_BHTD: Tensor, heads_BGSW: Tensor, scales_BGS: Tensor | None) -> Tensor:
    """One step by our kernel: [B, H, 1, D]."""
    return decode_attention(query_BHTD, heads_BGSW, key=layout.key, value=layout.value, scales_BGS=scales_BGS)


def fused(query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor) -> Tensor:
    """The same by torch, in the layout that suits it best: the query heads of a group as query positions."""
    grouped_BGHD = query_BHTD.unflatten(1, (key_BGSD.shape[1], -1)).squeeze(3)
    return F.scaled_dot_product_attention(grouped_BGHD, key_BGSD, value_BGSD).flatten(1, 2).unsqueeze(2)


def _rows(case: Case) -> tuple[Tensor, Tensor | None]:
    """Random rows [B, G, S, W], and the scales [B, G, S] of int8 ones."""
    shape = (case.batch, case.kv_heads, case.context, case.layout.head_width)
    if case.dtype == "int8":
        return pages.empty(*shape, dtype=torch.int8).random_(-127, 128), torch.rand(shape[:3]) / 64
    return pages.empty(*shape, dtype=DTYPES[case.dtype]).normal_(), None


def _sets(size: int) -> int:
    """How many sets of `size` bytes it takes until the first one is out of the caches."""
    return min(MOST_SETS, -(-AT_LEAST // size))


def _in_turn(call: Callable[[Any], object], sets: list[Any]) -> Contender:
    """Every measurement takes the next set, right after a call with the set before: decode steps follow one another."""
    following = cycle(sets)

    def once() -> None:
        with torch.inference_mode():
            call(next(following))

    def contender() -> float:
        once()
        return timed(once)()

    return contender
