"""Results of tasks with chosen numbers, and folders of runs that hold them, for tests of what is made from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twofold.study.record import RECORD_FILE, CacheRecord, CurvePoint, Environment, to_json, write_atomically
from twofold.trials.maps import Maps
from twofold.trials.plan import note_study, places_of, runs_of
from twofold.trials.record import TEST_FILE, AttentionMap, Look, Score, TaskRun, TrialRecord
from twofold.trials.results import TaskResults, TrialResults, TriedPoint, is_solved, summarise
from twofold.trials.spec import TaskStudySpec

RATES = (0.001, 0.003, 0.01)
MEASURES = {"symmetry": 0.613, "diagonal": 0.127, "answer": 0.541, "answer_near": 0.733}
PAIRS = {"4 pairs": 0.997, "8 pairs": 0.971, "16 pairs": 0.613}
TOKENS = 11 * 128  # of a training step


def synthetic_run(
    label: str,
    score: float,
    seed: int = 0,
    *,
    parts: Mapping[str, float] | None = None,
    measures: Mapping[str, float] | None = None,
    cache: int | None = None,
    steps: int = 60,
    point: dict[str, Any] | None = None,
    text: str = "",
) -> TaskRun:
    """One tested run; `text` is put into every field that holds free text."""
    found = Score(score=score, loss=2 * (1 - score), examples=503, answers=5003, parts=dict(parts or {}))
    return TaskRun(
        label=label,
        variant=label,
        seed=seed,
        parameters={"total": 72_523 + len(label)},
        validation=found,
        test=found,
        cache=cache
        and CacheRecord(
            tokens=7, bytes_formula=7 * cache, bytes_used=7 * cache, bytes_reserved=7 * cache, bytes_per_token=cache
        ),
        measures=dict(measures or {}),
        curve=[CurvePoint(tokens=TOKENS * step, loss=2.3 - score * step / steps) for step in range(1, steps + 1)],
        looks=[Look(step=n * steps // 3, score=score * n / 3) for n in (1, 2, 3)],
        examples_per_second=1009.0,
        wall_seconds=61.0,
        environment=Environment.model_validate(
            {
                **dict.fromkeys(("twofold", "python", "torch", "transformers", "platform"), "1.2.3" + text),
                **{"processor": "made up" + text, "threads": 1, "device": "cpu", "processes": 1, "commit": "abc"},
            }
        ),
        configuration={"task": {"note": "plain" + text}, "point": point or {}, "data": "f" * 64},
    )


def synthetic_task(
    runs: Sequence[TaskRun],
    *,
    name: str = "reverse",
    baseline: str = "QKV",
    threshold: float | None = 0.99,
    deciding_part: str | None = None,
    published: Mapping[str, float] | None = None,
    sweep: Sequence[TriedPoint] = (),
    **others: Any,
) -> TaskResults:
    """One task's results of these runs."""
    summary = summarise(runs, baseline, list(dict.fromkeys(run.label for run in runs)), (published or {}).get)
    return TaskResults(
        name=name,
        task={"task": name},
        metric="accuracy",
        chance=0.1,
        threshold=threshold,
        deciding_part=deciding_part,
        baseline=baseline,
        solved=is_solved(summary, baseline, threshold, deciding_part),
        steps=60,
        answers=5003,
        summary=summary,
        runs=tuple(runs),
        sweep=tuple(sweep),
        **others,
    )


def synthetic_trials(*tasks: TaskResults, text: str = "") -> TrialResults:
    """A study of tasks."""
    return TrialResults(
        study="made-up" + text,
        description="numbers by hand" + text,
        command="twofold study run made-up.yaml" + text,
        created="2026-01-02T03:04:05+00:00",
        tasks=tasks,
    )


def seeded(label: str, scores: Sequence[float], **others: Any) -> list[TaskRun]:
    """A variant's runs, one for each seed."""
    return [synthetic_run(label, score, seed, **others) for seed, score in enumerate(scores)]


def tried(label: str, scores: Sequence[float | None], chosen: int) -> list[TriedPoint]:
    """A variant's sweep over `RATES`."""
    return [
        TriedPoint(label=label, variant=label, point={"training.learning_rate": rate}, score=score, chosen=n == chosen)
        for n, (rate, score) in enumerate(zip(RATES, scores, strict=True))
    ]


def reverse(qkv=(0.997, 0.995, 0.996), other=(0.90, 0.91, 0.92), label="Q=K", name="reverse", **others):
    """An encoder's task with a sweep, measures and a published score; the other variant is far below, or as told."""
    runs = seeded("QKV", qkv, measures=MEASURES, **others) + seeded(label, other, measures=MEASURES, **others)
    swept = tried("QKV", (0.5, 0.9, 0.7), 1) + tried(label, (None, 0.8, 0.85), 2)
    return synthetic_task(runs, name=name, published={"QKV": 0.698}, sweep=swept)


def recall(name="recall", shift=0.0, text=""):
    """A decoder's task with parts and caches."""
    lower = {part: score - 0.1 for part, score in PAIRS.items()}
    runs = seeded("QKV", (0.9, 0.91), parts=PAIRS, cache=512, text=text)
    runs += seeded("MQA", (0.8 - shift, 0.81), parts=lower, cache=128, text=text)
    return synthetic_task(runs, name=name, deciding_part="4 pairs")


def synthetic_maps(labels: Sequence[str], task: str = "reverse", *, layers: int = 2, heads: int = 2) -> Maps:
    """Maps of 5 positions that look at the mirrored one with 0.7, each head a little less."""
    return {
        task: {label: tuple(_map(layer, head) for layer in range(layers) for head in range(heads)) for label in labels}
    }


def _map(layer: int, head: int) -> AttentionMap:
    most = 0.7 - 0.1 * head
    weights = tuple(tuple(most if k == 4 - q else (1 - most) / 4 for k in range(5)) for q in range(5))
    return AttentionMap(layer=layer, head=head, weights=weights)


def finished_trials(out: Path, scores: Mapping[str, Mapping[str, Sequence[float]]]) -> Path:
    """A folder as `study run` leaves it: of each task, each variant's scores by seed. Nothing is trained."""
    seeds = max(len(of_seed) for of_label in scores.values() for of_seed in of_label.values())
    spec = TaskStudySpec.model_validate(
        {
            "name": "made-up",
            "tasks": [{"task": task, "length": 8} for task in scores],
            "variants": list(dict.fromkeys(label for of_label in scores.values() for label in of_label)),
            "seeds": list(range(seeds)),
            "steps": 60,
        }
    )
    note_study(spec, out)
    write_atomically(out / "command.txt", b"twofold study run made-up.yaml\n")
    for trial, run in runs_of(places_of(spec, out)):
        score = scores[trial.name][run.label][run.seed]
        made = synthetic_run(run.label, score, run.seed, measures=MEASURES).model_dump(exclude={"test"})
        made["configuration"] |= {"sizes": dict(run.contender.sizes)}
        record = TrialRecord.model_validate({**made, "maps": synthetic_maps([run.label])["reverse"][run.label]})
        run.folder.mkdir(parents=True)
        write_atomically(run.folder / RECORD_FILE, to_json(record))
        write_atomically(run.folder / TEST_FILE, json.dumps({**made["validation"]}).encode())
    return out
