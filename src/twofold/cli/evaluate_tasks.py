"""`twofold evaluate --tasks`: tasks of lm-evaluation-harness on one trained model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from twofold.cli.output import print_json, show, table

if TYPE_CHECKING:
    from twofold.evaluation.downstream_run import Downstream, Score


def evaluate_tasks(
    model: Path,
    tasks: str,
    fewshot: int | None,
    limit: int | None,
    folders: list[Path],
    context: int | None,
    batch: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run the tasks and print their scores; see `evaluation.downstream_run.evaluate_tasks` for what is refused."""
    from twofold.cli.progress import quiet_libraries
    from twofold.evaluation.downstream_run import evaluate_tasks as run
    from twofold.evaluation.downstream_run import require_harness

    names = [name for name in map(str.strip, tasks.split(",")) if name]
    if not names:
        raise ValueError("--tasks names none: give names with commas between, such as twofold_local or arc_easy")
    if out is not None and not out.absolute().parent.is_dir():
        raise ValueError(f"{out.parent} is no folder: make it, or write the results elsewhere")
    require_harness()
    quiet_libraries()
    from twofold.evaluation.downstream import TwofoldLM

    lm = TwofoldLM(model, batch_size=batch, max_length=context)
    variant = lm.model.config.described
    found = run(lm, names, fewshot=fewshot, limit=limit, folders=folders)
    content = {"variant": variant, "limit": limit, **asdict(found)}
    if out is not None:
        from twofold.study.record import write_atomically

        write_atomically(out, json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
    if as_json:
        print_json(content)
    else:
        _show(variant, found)
    _warn(found)


def _show(variant: str, found: Downstream) -> None:
    shown = table()
    for name in ("task", "metric"):
        shown.add_column(name, no_wrap=True)
    for name in ("value", "± standard error", "chance", "documents", "examples"):
        shown.add_column(name, justify="right", no_wrap=True)
    for score in found.scores:
        shown.add_row(*_cells(score))
    show(f"{variant}, context {found.context:,}, lm-evaluation-harness {found.harness}", shown)


def _cells(score: Score) -> list[str]:
    better = {True: " ↑", False: " ↓", None: ""}[score.higher_is_better]
    numbers: list[Any] = [score.value, score.error, score.chance]
    counts = [f"{score.documents:,}", "" if score.fewshot is None else str(score.fewshot)]
    return [score.task, score.metric + better, *("" if n is None else f"{n:.4f}" for n in numbers), *counts]


def _warn(found: Downstream) -> None:
    for score in found.scores:
        if score.may_be_chance:
            typer.echo(
                f"Warning: {score.task}, {score.metric}: {score.value:.4f} lies within two standard errors of "
                f"{score.chance:.4f}, which guessing reaches",
                err=True,
            )
    if found.cut:
        typer.echo(
            f"Warning: {found.cut:,} contexts did not fit into {found.context:,} tokens and lost their beginning",
            err=True,
        )
