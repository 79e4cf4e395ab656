"""`twofold lab`: a page to learn with, where small trained models run on what is typed."""

from __future__ import annotations

import shlex
import webbrowser
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.output import show

if TYPE_CHECKING:
    from twofold.cli.progress import RunProgress
    from twofold.explain.lab import LabRun
    from twofold.study.plan import PlannedRun

EXAMPLES = """[bold]Examples[/bold]
  twofold lab
  twofold lab --open
  twofold lab runs/demo/runs/QKV_seed0 runs/demo/runs/K=V_seed0 --out compared
  twofold lab --sentence "for name in names:" --set tokens=3000000 --out runs/lab-longer"""

STUDY = "lab"
MODELS_FOLDER = "models"
SENTENCE = "def name(self, value):"


def lab(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Up to four runs of Twofold decoders over bytes. Without any, the four of the built-in study `lab`, "
            "trained first where they are not there yet: a few minutes.",
            metavar="RUN",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for lab.html, and for models that are trained.", file_okay=False)
    ] = Path("runs/lab"),
    sentence: Annotated[str, typer.Option(help="What the page begins with.")] = SENTENCE,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Replace a value of the study `lab`: tokens=3000000. May be repeated.",
            metavar="KEY=VALUE",
            show_default=False,
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write lab.html: type a sentence, step through attention, see what is cached, move the scale and the context.

    The page holds the models' weights, computes everything itself and loads nothing.
    """
    if runs and settings:
        raise ValueError("--set changes the models that are trained here, and runs are given: leave one of them out")
    _require_text(sentence)
    command = shlex.join(["twofold", *context.obj])
    from twofold.cli.progress import quiet_libraries
    from twofold.explain.lab import lab_of
    from twofold.report.lab_page import write_lab

    quiet_libraries()
    chosen = [_run(folder) for folder in runs] if runs else _own(out / MODELS_FOLDER, settings or [], command)
    path = write_lab(lab_of(chosen, sentence, command), out)
    show(str(path))
    if open_it and not webbrowser.open(path.resolve().as_uri()):
        raise ValueError(f"no browser was found to open {path}: open it yourself")


def _require_text(sentence: str) -> None:
    """Raise ValueError for bytes that are not UTF-8, before anything is trained: a page cannot hold them."""
    try:
        sentence.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the sentence is not UTF-8 from its character {error.start} on, and a page holds no other text: give "
            "another --sentence"
        ) from None


def _own(folder: Path, settings: list[str], command: str) -> list[LabRun]:
    """The runs of the built-in study, made where they are missing."""
    from twofold.cli.progress import reading, running
    from twofold.study.plan import planned_runs
    from twofold.study.runner import run_study
    from twofold.study.spec import StudySpec
    from twofold.trials.load import load_any_study

    spec = load_any_study(STUDY, settings)
    assert isinstance(spec, StudySpec), "the lab's models read text"
    total = spec.run_count

    def watch(one: PlannedRun) -> AbstractContextManager[RunProgress]:
        return running(f"{one.number} of {total}: {one}", later=total - one.number)

    run_study(spec, folder, command, watch, reading)
    return [_run(run.folder) for run in planned_runs(spec, folder) if run.finished]


def _run(folder: Path) -> LabRun:
    """A run with the loss that its record holds, if it has one."""
    from twofold.explain.lab import LabRun
    from twofold.study.record import RECORD_FILE, read_record

    record = folder / RECORD_FILE
    return LabRun(folder, read_record(record).validation.bits_per_byte if record.is_file() else None)
