"""`twofold train`: one model, trained, evaluated and sampled; what a study does once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from twofold.cli.output import print_json, show, table
from twofold.cli.quantities import parse_count
from twofold.study.settings import apply_settings

EXAMPLES = """[bold]Examples[/bold]
  twofold train --variant "K=V GQA-2" --tokens 1M
  twofold train --data my-texts/ --tokens 5M --out runs/mine
  twofold train --data my-texts/ --set data.tokenizer=bpe-4096
  twofold train --data dataset:roneneldan/TinyStories --set data.streaming=true --set data.tokenizer=bpe-4096
  twofold train --variant MQA --set model.layers=6 --set training.learning_rate=1e-3"""

PARTS = ("data", "model", "training", "sample")
"""Parts of a study file whose keys `--set` takes; the rest have options of their own."""


def train(
    variant: Annotated[str, typer.Option(help='Such as "K=V GQA-2"; see `twofold variants`.')] = "QKV",
    data: Annotated[str, typer.Option(help="A file, a folder, a glob, python-stdlib, or dataset:NAME_OR_FOLDER.")] = (
        "python-stdlib"
    ),
    tokens: Annotated[str, typer.Option(help="Training tokens, such as 1.2M.")] = "1.2M",
    preset: Annotated[str, typer.Option(help="Named sizes, see `twofold plan --help`.")] = "tiny",
    seed: Annotated[int, typer.Option(help="For initial values, order of the data and dropout.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the model.", show_default="runs/train/VARIANT_seedN")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other key of a study file, such as data.context=512 or model.heads=8; may be given again.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Train one model on text; writes model/, metrics.jsonl and record.json into the folder.

    The same command goes on where it was interrupted.
    """
    from twofold.study.load import checked
    from twofold.study.plan import PlannedRun

    content: dict[str, Any] = {
        "name": "train",
        "variants": [variant],
        "seeds": [seed],
        "tokens": parse_count(tokens),
        "data": {"source": data},
        "model": {"preset": preset},
    }
    apply_settings(content, settings or [], PARTS)
    spec = checked(content)
    (contender,) = spec.contenders
    folder = out or Path("runs") / "train" / f"{contender.slug}_seed{seed}"
    from twofold.cli.progress import quiet_libraries, reading, running
    from twofold.study.data import StudyData
    from twofold.study.execute import execute, may_go_on
    from twofold.training import processes, requirements

    quiet_libraries()
    run = PlannedRun(1, contender, seed, folder)
    processes.join()
    requirements.check(spec.training)
    with reading(quiet=not processes.is_first()) as stages:
        data_of_run = StudyData.load(spec, stages)
    if processes.from_first(lambda: folder.exists() and not may_go_on(run, spec, data_of_run)):
        raise ValueError(
            f"{folder} exists, and is no interrupted run of these settings: choose another folder with --out, or "
            "remove it"
        )
    with running(str(run), quiet=not processes.is_first()) as watcher:
        record = execute(run, spec, data_of_run, watcher)
    if record is None:  # another process writes it and tells
        return
    if as_json:
        print_json(record.model_dump(mode="json", exclude={"documents", "curve"}))
        return
    shown = table(show_header=False)
    shown.add_column(style="bold")
    shown.add_column()
    shown.add_row("parameters", f"{record.parameters['total']:,}")
    shown.add_row(
        "bits per byte", f"{record.validation.bits_per_byte:.4f} on {record.validation.bytes:,} held-out bytes"
    )
    shown.add_row("perplexity", f"{record.validation.perplexity:.4f} per token")
    shown.add_row("cache", f"{record.cache.bytes_per_token:,.0f} bytes per token, measured at {record.cache.tokens:,}")
    shown.add_row("training", f"{record.speed.train_tokens_per_second:,.0f} tokens/s")
    shown.add_row("folder", str(folder))
    show(shown)
