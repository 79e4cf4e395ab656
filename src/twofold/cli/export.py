"""`twofold export`: a trained model as another engine's, exact and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.output import print_json, show

if TYPE_CHECKING:
    from twofold.export.check import Check
    from twofold.export.export import ExportRecord

EXAMPLES = """[bold]Examples[/bold]
  twofold export runs/mine --format deepseek --out exported/
  twofold export runs/mine --format deepseek --pad 512+64 --out for-vllm/
  twofold export runs/mine --format gguf --type q8_0 --out for-llama-cpp/
  twofold export runs/mine --format llama --out exported/ --no-check --json"""


def export(
    model: Annotated[Path, typer.Argument(help="A folder that `train` or `study run` wrote.", show_default=False)],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="deepseek or gguf (K=V decoupled, MLA: their small cache), llama (QKV, GQA; shared roles copied).",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new folder.", show_default=False)],
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
    as_json: Annotated[bool, typer.Option("--json", help="Print export.json.")] = False,
) -> None:
    """Write a model for other engines; what would not be exact is refused, with the nearest form that is.

    The folder holds weights, configuration, tokenizer, and export.json with what was done and found.
    """
    from twofold.cli.progress import quiet_libraries
    from twofold.export.export import export_model
    from twofold.models.load import load_model

    quiet_libraries()
    record = export_model(load_model(model), form, out, pad, untied=untied, kind=kind, checked=check)
    if as_json:
        print_json(record.as_dict())
    else:
        show(*_lines(record, out))


def _lines(record: ExportRecord, out: Path) -> list[str]:
    more = "" if record.keeps_saving else ": more than the model itself"
    ours, theirs = record.cache_numbers, record.target_cache_numbers
    lines = [
        f"{record.variant} as {record.model_type}, {record.parameters:,} parameters in {record.dtype}: {out}",
        f"cache: {ours:,} numbers per token and layer here, {theirs:,} there{more}",
    ]
    lines += _check_lines(record.check) if record.check else ["not checked"]
    return [*lines, *(f"changed: {change}" for change in record.changes), *(f"note: {note}" for note in record.notes)]


def _check_lines(found: Check) -> list[str]:
    equal = "equal" if found.greedy_equal else "NOT equal"
    return [
        f"checked in {found.engine}: logits of {found.tokens} tokens differ by at most "
        f"{found.max_logit_difference:.1e} (the largest is {found.largest_logit:.1f}), {found.greedy_tokens} greedy "
        f"tokens {equal}; caches measured: {found.cache_numbers:,.0f} and {found.target_cache_numbers:,.0f} numbers"
    ]
