"""Run records with chosen numbers, for tests of what is made from records."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from twofold.study import execute
from twofold.study.collection import ORIGIN_FILE, Origin
from twofold.study.picking import Tried, halves
from twofold.study.plan import DIVERGED_FILE, PlannedRun, note_study
from twofold.study.record import (
    RECORD_FILE,
    CacheRecord,
    CurvePoint,
    DocumentRecord,
    Environment,
    RunRecord,
    Sample,
    Speed,
    Validation,
    to_json,
    write_record,
)
from twofold.study.results import CorpusRecord, Results, build_results
from twofold.study.spec import StudySpec

SIZES = (1009, 2003, 1511, 4001, 701, 3001, 907, 2503, 1301, 5003, 1709)  # bytes of each held-out document
NAMES = tuple(f"package/module_{i}.py" for i in range(len(SIZES)))


def synthetic_record(
    variant: str,
    bits_per_byte: float | Sequence[float],
    *,
    seed: int = 0,
    bytes_per_token: int = 512,
    names: Sequence[str] = NAMES,
    sizes: Sequence[int] = SIZES,
    parameters: dict[str, int] | None = None,
    sample: Sample | None = None,
    text: str = "",
    point: dict[str, Any] | None = None,
) -> RunRecord:
    """A record whose documents score `bits_per_byte` (one number for all, or one each).

    `text` is put into every field that holds free text, but not the documents' names.
    """
    each = [bits_per_byte] * len(sizes) if isinstance(bits_per_byte, int | float) else list(bits_per_byte)
    documents = tuple(
        DocumentRecord(name=name, nats=bits * size * math.log(2), tokens=size + 1, bytes=size)
        for name, size, bits in zip(names, sizes, each, strict=True)
    )
    return RunRecord(
        variant=variant + text,
        seed=seed,
        parameters=parameters or {"total": 762_147, "attention": 262_144, "mlp": 500_003},
        validation=Validation.of(documents),
        cache=_cache(bytes_per_token, tokens=257),
        speed=Speed(train_tokens_per_second=18_013, decode_tokens_per_second=211, wall_seconds=97),
        environment=_environment(text),
        configuration={"model": {"width": 131, "layers": 3, "note": text}, "training": {"tokens": 1_000_003}}
        | ({"point": point} if point else {}),
        sample=sample or Sample(prompt="def f(x):" + text, text="\n    return x" + text),
        curve=_curve(documents),
        documents=documents,
    )


def synthetic_results(
    records: Sequence[RunRecord],
    *,
    bigram: float = 3.61,
    text: str = "",
    baseline: str | None = None,
    sweep: Sequence[Tried] = (),
) -> Results:
    """Results of these records, from a study with a made-up corpus."""
    return build_results(
        records,
        study="synthetic" + text,
        command="twofold study run synthetic" + text,
        created="2026-01-02T03:04:05+00:00" + text,
        corpus=_corpus(text),
        bigram_bits_per_byte=bigram,
        baseline=baseline,
        sweep=sweep,
    )


def bits_by_half(picking: float, reported: float) -> list[float]:
    """Bits per byte of each document, so that the two halves score what is asked for."""
    documents = synthetic_record("QKV", 2.0).documents
    picks = {document.name for document in halves(documents)[0]}
    return [picking if document.name in picks else reported for document in documents]


def synthetic_study(spec: StudySpec, out: Path) -> Path:
    """The folder of an ordinary study without any run."""
    note_study(spec, out)
    origin = Origin(study=spec.name, command="made up", corpus=_corpus(""), bigram_bits_per_byte=3.61)
    (out / ORIGIN_FILE).write_bytes(to_json(origin))
    return out


def finish(run: PlannedRun, bits_per_byte: float | Sequence[float]) -> None:
    """Give a planned run a record with these scores."""
    run.folder.mkdir(parents=True, exist_ok=True)
    record = synthetic_record(run.variant, bits_per_byte, seed=run.seed, point=dict(run.point))
    write_record(record.model_copy(update={"label": run.label}), run.folder / RECORD_FILE)


def invent_runs(
    monkeypatch: pytest.MonkeyPatch, score: Callable[[PlannedRun, StudySpec], float], *, watched: bool = True
) -> None:
    """From now on, runs of studies are not trained but get the bits per byte that `score` says.

    Whoever watches is shown the run itself in place of its one step, unless that is a real progress bar.
    """

    def invented(run: PlannedRun, spec: StudySpec, data: object, watcher: Any) -> None:
        if watched:
            watcher.trained(run)
        finish(run, score(run, spec))

    monkeypatch.setattr(execute, "execute", invented)


def diverge(run: PlannedRun) -> None:
    """Give a planned run the note of one whose loss stopped being a number."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / DIVERGED_FILE).write_text("the loss is nan at step 3 of 11\n")


def _corpus(text: str) -> CorpusRecord:
    return CorpusRecord(
        name="made-up" + text, sha256="0f" * 32 + text, documents=113, bytes=1_000_003, held_out_bytes=27_649
    )


def _cache(bytes_per_token: int, tokens: int) -> CacheRecord:
    used = bytes_per_token * tokens
    return CacheRecord(
        tokens=tokens,
        bytes_formula=used,
        bytes_used=used,
        bytes_reserved=used * 5 // 4,
        bytes_per_token=bytes_per_token,
    )


def _environment(text: str) -> Environment:
    return Environment(
        twofold="0.1.0" + text,
        python="3.11.2" + text,
        torch="2.13.0" + text,
        transformers="5.24.0" + text,
        platform="Linux" + text,
        processor="a processor" + text,
        threads=2,
        device="cpu" + text,
        commit="c0ffee" + text,
    )


def _curve(documents: Sequence[DocumentRecord]) -> tuple[CurvePoint, ...]:
    end = Validation.of(documents).loss
    return tuple(CurvePoint(tokens=37_003 * i, loss=end + 3 / (1 + i)) for i in range(1, 29))
