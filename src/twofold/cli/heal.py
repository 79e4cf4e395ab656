"""`twofold heal`: a converted model learns from its teacher what the conversion lost."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from twofold.cli.output import print_json, show
from twofold.cli.quantities import parse_count

if TYPE_CHECKING:
    from twofold.healing.record import HealRecord
    from twofold.healing.settings import HealingSettings

EXAMPLES = """[bold]Examples[/bold]
  twofold heal converted/ --teacher path/to/SmolLM2-135M --data texts/ --tokens 1M --out healed/
  twofold heal converted/ --teacher smol.gguf --data "texts/a*" --held-out "texts/b*" --tokens 500K --out healed/
  twofold heal converted/ --teacher smol/ --data texts/ --tokens 1M --lora 16 --lr 1e-3 --out healed/
  twofold heal --show healed/"""


def heal(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="DIR", help="The folder of a Twofold model.", show_default=False)
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="What it was made of: a folder, a .gguf file or a name on the hub.", show_default=False),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Text: a file, a folder or a glob; may be given again.", show_default=False),
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Training tokens, such as 1M.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="New folder.", show_default=False)] = None,
    held_out: Annotated[str, typer.Option(help="Text to measure on: a source, or a share of --data.")] = "0.05",
    window: Annotated[int, typer.Option("--context", help="Tokens per window.")] = 1024,
    batch: Annotated[int, typer.Option(help="Windows per forward pass.")] = 4,
    accumulation: Annotated[int, typer.Option(help="Forward passes per step.")] = 1,
    lr: Annotated[float, typer.Option(help="Learning rate at its peak.")] = 3e-4,
    warmup: Annotated[float, typer.Option(help="Share of the steps in which it rises.")] = 0.05,
    train: Annotated[
        Literal["attention", "all"], typer.Option(help="The weights that learn: those of attention, or all.")
    ] = "attention",
    lora: Annotated[int, typer.Option(help="Rank of adapters that learn in their place; 0 for none.")] = 0,
    temperature: Annotated[float, typer.Option(help="Of the divergence.")] = 1.0,
    layer_loss: Annotated[float, typer.Option(help="Weight of the error of layers' outputs.")] = 0.0,
    cross_entropy: Annotated[float, typer.Option(help="Weight of the cross entropy of the text.")] = 0.0,
    every: Annotated[
        str, typer.Option(help="Training tokens between evaluations.", show_default="a fifth of all")
    ] = "0",
    sample: Annotated[str, typer.Option(help="Held-out tokens that evaluations in between read.")] = "16384",
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Train the teacher on the same text, to compare with.")
    ] = True,
    control_lr: Annotated[
        float, typer.Option(help="The control's learning rate.", show_default="the same as --lr")
    ] = 0.0,
    controls: Annotated[
        Path | None,
        typer.Option(help="Folder of controls, of which one may serve.", show_default="beside --out"),
    ] = None,
    seed: Annotated[int, typer.Option(help="For the order of the text and the adapters.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.", show_default="torch's own choice")] = None,
    shown: Annotated[
        Path | None, typer.Option("--show", metavar="DIR", help="Print the tables of a healing.", show_default=False)
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables of --show as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Distil a teacher into a model that was converted from it, with a control that shows what the text alone gives.

    Writes model/, metrics.jsonl, evaluations.jsonl, heal.json and heal.html into the folder. The same command goes on
    where it was interrupted.
    """
    from twofold.cli.heal_tables import heal_markdown
    from twofold.healing.record import read_heal_record

    if shown is not None:
        if model or teacher or data or out or tokens:
            raise ValueError("--show prints what a healing has written: give it alone, with --json if you like")
        found = read_heal_record(shown)
        if as_markdown:
            typer.echo(heal_markdown(found))
            return
        _make_page(found, shown)
        _print(found, shown, as_json)
        return
    if as_markdown:
        raise ValueError("--markdown is of --show: add it, or leave --markdown out")
    missing = {"DIR": model, "--teacher": teacher, "--data": data, "--tokens": tokens, "--out": out}
    if absent := [name for name, value in missing.items() if not value]:
        raise ValueError(f"{absent[0]} is missing: healing takes {', '.join(missing)}, or --show DIR")
    assert model is not None
    assert teacher is not None
    assert data is not None
    assert tokens is not None
    assert out is not None
    settings = _settings(
        {
            "tokens": parse_count(tokens),
            "context": window,
            "train": train,
            "lora": lora,
            "temperature": temperature,
            "layer_loss": layer_loss,
            "cross_entropy": cross_entropy,
            "every": parse_count(every),
            "sample": parse_count(sample),
            "control": control,
            "control_lr": control_lr,
            "seed": seed,
            "training": {
                "batch": batch,
                "accumulation": accumulation,
                "learning_rate": lr,
                "warmup": warmup,
                "weight_decay": 0.0,
            },
        }
    )
    if threads is not None and threads < 1:
        raise ValueError(f"--threads must be at least 1, not {threads}")
    command = shlex.join(["twofold", *(context.obj or [])])
    record = _heal(model, teacher, data, held_out, settings, out, controls, threads, command)
    _make_page(record, out)
    _print(record, out, as_json)


def _settings(fields: dict[str, Any]) -> HealingSettings:
    """The settings. ValueError, with the first fault in a line, where one is out of its range."""
    from pydantic import ValidationError

    from twofold.healing.settings import HealingSettings

    try:
        return HealingSettings.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        if not fault["loc"]:  # of several together
            raise ValueError(str(fault["ctx"]["error"])) from error
        name = {"learning_rate": "lr"}.get(str(fault["loc"][-1]), str(fault["loc"][-1]))
        raise ValueError(f"--{name.replace('_', '-')} is {fault['input']}: {fault['msg']}") from error


def _heal(
    model: str,
    teacher: str,
    data: list[str],
    held_out: str,
    settings: HealingSettings,
    out: Path,
    controls: Path | None,
    threads: int | None,
    command: str,
) -> HealRecord:
    import torch

    from twofold.cli.progress import quiet_libraries, reading, running
    from twofold.healing.heal import CONTROLS, Healing, heal, may_go_on
    from twofold.healing.opening import open_pair
    from twofold.healing.texts import HealingTexts

    if not may_go_on(out):
        raise ValueError(f"{out} is no new folder, and no interrupted healing: choose another with --out")
    if threads is not None:
        torch.set_num_threads(threads)
    quiet_libraries()
    pair = open_pair(model, teacher)
    with reading() as stages:
        texts = HealingTexts.read(data, held_out, pair.tokenizer, settings, stages)
    job = Healing(
        model=pair.model,
        teacher=pair.teacher,
        texts=texts,
        settings=settings,
        out=out,
        controls=controls or out.absolute().parent / CONTROLS,
        model_name=model,
        teacher_name=teacher,
        command=command,
    )
    return heal(job, running)


def _make_page(record: HealRecord, folder: Path) -> None:
    """Make the page where a healing was ended after its record and before it."""
    from twofold.report.heal_page import PAGE_FILE, write_heal_page

    if folder.is_dir() and not (folder / PAGE_FILE).exists():
        write_heal_page(record, folder)


def _print(record: HealRecord, folder: Path, as_json: bool) -> None:
    from twofold.cli.heal_tables import heal_tables

    if as_json:
        print_json(record.model_dump(mode="json"))
    else:
        place = folder if folder.is_dir() else folder.parent
        show(*heal_tables(record), f"{place} holds the healed model and heal.html.")
