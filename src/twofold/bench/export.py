"""Decoding in llama.cpp: K=V decoupled as exported, beside the same with keys and values apart, and ordinary GQA.

Weights in float16 and random, rows in float16, flash attention on. Caches are what llama.cpp's log says. Beside each
export stand
- the same model with keys and values apart, for each key/value head and for each query head (`bench.apart`);
- GQA of nearly equal cache: as many query heads of as many dims, in llama.cpp's `llama`.
Width, layers, MLP and vocabulary are equal; the matrices of attention are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from twofold.bench import decoders, llama_cpp
from twofold.bench.apart import EXPANDED, GROUPED, grouped
from twofold.bench.generate import stepping
from twofold.bench.llama_cpp import Session
from twofold.bench.record import Machine, Row
from twofold.bench.sizes import Effort
from twofold.bench.timing import Watch, interleaved, rows
from twofold.export.gguf_file import gguf, write_gguf
from twofold.export.gguf_form import Form
from twofold.export.target import Target
from twofold.models.architecture import Architecture, as_variant

CONTEXT, QUICK_CONTEXT = 4_096, 512
STEPS, QUICK_STEPS = 24, 8
"""Tokens of one measurement."""
HEADS, HEAD_DIM, ROTARY = 8, 64, 32


@dataclass(frozen=True)
class Case:
    """K=V decoupled with g key/value heads, g·64 + 32 numbers a token, and the GQA whose 128 a head come nearest.

    Other dims of a head would make caches equal. But llama.cpp takes dot products of float16 in steps of 32 on a CPU,
    and what is left over number by number.
    """

    kv_heads: int
    gqa_heads: int

    @property
    def variant(self) -> str:
        """The notation."""
        return "K=V " + {1: "MQA ", HEADS: ""}.get(self.kv_heads, f"GQA-{self.kv_heads} ") + "decoupled"

    @property
    def gqa(self) -> str:
        """The notation of the ordinary one."""
        return "MQA" if self.gqa_heads == 1 else f"GQA-{self.gqa_heads}"


CASES = (Case(8, 4), Case(4, 2), Case(2, 1), Case(1, 1))


def sized(variant: str, quick: bool = False, rotary_dims: int = 0) -> Architecture:
    """The decoder that is measured: 8 layers of width 512."""
    return Architecture(
        layers=2 if quick else 8,
        width=512,
        heads=HEADS,
        mlp=1_376,
        vocab=8_192,
        positions=CONTEXT + 256,
        variant=as_variant(variant),
        norm_epsilon=1e-6,
        head_dim=HEAD_DIM,
        rotary_dims=rotary_dims,
    )


def measure(effort: Effort, machine: Machine, watch: Watch) -> tuple[list[Row], list[str]]:
    """Rows of each case against each alternative."""
    left_out = decoders.left_out("the whole bench", llama_cpp.NEEDS)
    if left_out:
        return [], left_out
    cases = (CASES[0], CASES[-1]) if effort.quick else CASES
    context, steps = (QUICK_CONTEXT, QUICK_STEPS) if effort.quick else (CONTEXT, STEPS)
    ids_T = decoders.random_ids(sized("QKV"), 1, context)[0]
    found: list[Row] = []
    for number, case in enumerate(cases):
        watch(number, len(cases), f"{case.variant}, {context:,} tokens of context")
        with contestants(case, context + steps + 1, effort.quick) as sessions:
            for session in sessions.values():
                session.extend(ids_T)
            contenders = {name: stepping(session, steps) for name, session in sessions.items()}
            times = interleaved(contenders, effort.repeats)
            caches = {name: round(session.cache.bytes) for name, session in sessions.items()}
        keys: dict[str, Any] = {"variant": case.variant, "context": context, "cache_bytes": caches.pop("ours")}
        made = rows(f"export/{case.variant}/{context}", times, tokens=1, **keys)
        found += [
            row.model_copy(update={"alternative_cache_bytes": size})
            for row, size in zip(made, caches.values(), strict=True)
        ]
    watch(len(cases), len(cases), "")
    return found, []


@contextmanager
def contestants(case: Case, capacity: int, quick: bool = False) -> Iterator[dict[str, Session]]:
    """The export as "ours", and its alternatives by name, with room for `capacity` tokens each."""
    model = decoders.ours(sized(case.variant, quick, rotary_dims=ROTARY))
    other = decoders.ours(sized(case.gqa, quick))
    exported = gguf(model, untied=True)
    written: dict[str, tuple[Target, Form | None]] = {"ours": (exported, None)}
    if case.kv_heads < HEADS:  # else the next has as many heads, and the norm as well
        written[_apart(case.kv_heads)] = (grouped(model), GROUPED)
    written[_apart(HEADS)] = (exported, EXPANDED)
    written[case.gqa] = (gguf(other, untied=True), None)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        sessions = {}
        for number, (name, (target, form)) in enumerate(written.items()):
            file = Path(folder) / f"{number}.gguf"
            write_gguf(target, file, "f16", None, form)
            opened = llama_cpp.session(file, capacity, torch.get_num_threads(), half=True)
            sessions[name] = stack.enter_context(opened)
        yield sessions


def _apart(heads: int) -> str:
    return f"apart, {heads} head{'' if heads == 1 else 's'}"
