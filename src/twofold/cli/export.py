"""`twofold export`: a trained model as another engine's, exact and checked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from twofold.cli.export_tables import grid, lines, read_record, remarks
from twofold.cli.grids import drawn, markdown
from twofold.cli.output import print_json, show

EXAMPLES = """[bold]Examples[/bold]
  twofold export runs/mine --format deepseek --out exported/
  twofold export runs/mine --format deepseek --pad 512+64 --out for-vllm/
  twofold export runs/mine --format gguf --type q8_0 --out for-llama-cpp/
  twofold export runs/mine --format llama --out exported/ --no-check --json
  twofold export --show exported/export.json --show for-llama-cpp/export.json"""


def export(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Argument(help="A folder that `train`, `study run`, `convert` or `heal` wrote.", show_default=False),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="deepseek (K=V decoupled, MLA: their small cache), llama (QKV, GQA; shared roles copied), or gguf: "
            "one or the other, whichever the model is like.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The new folder.", show_default=False)] = None,
    pad: Annotated[
        str | None,
        typer.Option(
            help="deepseek: fill rows up with zeros to 256+64 or 512+64, as vLLM's kernels need.",
            show_default="none",
        ),
    ] = None,
    untied: Annotated[
        bool, typer.Option("--untied", help="Write the head as a tensor of its own, as with --pad.")
    ] = False,
    kind: Annotated[str, typer.Option("--type", help="gguf: how matrices are stored, f32, f16 or q8_0.")] = "f32",
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Load the result and compare logits, greedy tokens and caches.")
    ] = True,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--show",
            help="Export nothing, and print an export.json or that of a folder; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of --show as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print export.json.")] = False,
) -> None:
    """Write a model for other engines; what would not be exact is refused, with the nearest form that is.

    The folder holds weights, configuration, tokenizer, and export.json with what was done and found.
    """
    if records:
        if (model, form, out) != (None, None, None):
            raise ValueError("--show reads records and exports nothing: leave the rest out")
        _print_records(records, as_markdown, as_json)
        return
    if as_markdown:
        raise ValueError("--markdown is of --show: add it, or leave --markdown out")
    if model is None or form is None or out is None:
        missing = [name for name, given in (("MODEL", model), ("--format", form), ("--out", out)) if given is None]
        raise ValueError(f"{' and '.join(missing)} missing: name a model's folder, a --format and a new folder --out")
    from twofold.cli.progress import quiet_libraries
    from twofold.export.export import export_model
    from twofold.models.load import load_model

    quiet_libraries()
    command = shlex.join(["twofold", *context.obj])
    record = export_model(load_model(model), form, out, pad, untied=untied, kind=kind, checked=check, command=command)
    if as_json:
        print_json(record.as_dict())
    else:
        show(*lines(record, out))


def _print_records(paths: list[Path], as_markdown: bool, as_json: bool) -> None:
    found = [read_record(path) for path in paths]
    if as_json:
        print_json(found)
    elif as_markdown:
        typer.echo("\n".join([markdown(grid(found)), "", *(f"- {line}" for line in remarks(found))]))
    else:
        show(drawn(grid(found)), "", *remarks(found))
