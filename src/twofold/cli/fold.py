"""`twofold fold`: which layers of a model fold, what that saves, and whether outputs stay what they were."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.cli.fold_tables import check_lines, heading, layer_table, parity_grid, parity_remarks
from twofold.cli.grids import drawn, markdown
from twofold.cli.output import print_json, show

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXAMPLES = """[bold]Examples[/bold]
  twofold fold path/to/gemma-4-31B --context 262144
  twofold fold path/to/gemma-4-31B --form value --context 32768 --batch 8 --json
  twofold fold path/to/gpt2 --check
  twofold fold --parity --out parity.json
  twofold fold --show parity.json --markdown"""

CHECKED = 160
DEFAULT_TEXT = (
    "A decoder keeps what it has read. For every token and every layer it stores a key, by which later tokens find it, "
    "and a value, which they take from it. Where both are made by one matrix they are nearly the same numbers, and a "
    "runtime that stores them twice reads and keeps twice what it needs."
)


def fold(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A folder with a config.json, a configuration file, or a name on the Hugging Face hub.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            help="row, value, latent or input: what is kept; see docs/folding.md.", show_default="the family's"
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--context", help="Tokens of each sequence.", show_default="the model's longest")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16.", show_default="the configuration's")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Load the weights, and compare logits and generated tokens on a text.")
    ] = False,
    text: Annotated[Path | None, typer.Option(help="The text for --check.", show_default="a paragraph")] = None,
    parity: Annotated[
        bool,
        typer.Option(
            "--parity", help="Compare folded with stock on small random models: Gemma 4, DeepSeek-V2 to V4, GPT-2, OPT."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="With --parity: also write it as JSON.", show_default=False)] = None,
    record: Annotated[
        Path | None, typer.Option("--show", help="Measure nothing, and print what --parity wrote.", show_default=False)
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print --parity's table as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which layers of a model of transformers fold, bytes of its cache before and after, and a check of its outputs.

    Nothing is changed on disk. In Python: twofold.fold(model), twofold.unfold(model).
    """
    if parity or record is not None:
        if model is not None or check or (parity and record is not None):
            raise ValueError("--parity makes its own small models, and --show reads a record: leave the rest out")
        _print_parity(_parity(context, out) if record is None else read_parity(record), as_markdown, as_json)
        return
    if out is not None or as_markdown:
        raise ValueError("--out and --markdown are of --parity: add it, or leave them out")
    if model is None:
        raise ValueError("name a model: a folder, a configuration file or a hub name; or ask for --parity")
    from twofold.cli.progress import quiet_libraries
    from twofold.folding.opening import DTYPES, open_without_weights
    from twofold.folding.report import folding_report

    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown --dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    if text is not None and not check:
        raise ValueError("--text is what --check reads: add --check, or leave --text out")
    quiet_libraries()
    report = folding_report(open_without_weights(model, dtype), context=tokens, batch=batch, form=form)
    found = _check(model, form, dtype, text) if check else None
    if as_json:
        print_json(report.as_dict() | ({} if found is None else {"check": found}))
        return
    show(heading(report), "", layer_table(report), "", *report.notes, *([] if found is None else check_lines(found)))


def read_parity(path: Path) -> dict[str, Any]:
    """What --parity wrote. ValueError for a file that is none of it."""
    try:
        found = json.loads(path.read_bytes())
        parity_grid(found["rows"])
    except OSError:
        raise
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is no record of folding: give a file that `twofold fold --parity --out` wrote"
        ) from None
    return found


def _parity(context: typer.Context, out: Path | None) -> dict[str, Any]:
    from twofold.bench.record import check_writable
    from twofold.cli.progress import quiet_libraries, reading
    from twofold.environment import environment
    from twofold.folding.parity import parity
    from twofold.study.record import write_atomically

    check_writable((out,))
    quiet_libraries()
    with reading("folding", "small models") as progress:
        rows = [row.as_dict() for row in parity(progress=progress)]
    found = {"rows": rows, "command": shlex.join(["twofold", *context.obj]), "environment": environment()}
    if out is not None:
        write_atomically(out, json.dumps(found, indent=1).encode())
    return found


def _print_parity(found: dict[str, Any], as_markdown: bool, as_json: bool) -> None:
    grid = parity_grid(found["rows"])
    if as_json:
        print_json(found)
    elif as_markdown:
        typer.echo(markdown(grid))
    else:
        show(drawn(grid), "", *parity_remarks(found["rows"]))


def _check(name: str, form: str | None, dtype: str | None, text: Path | None) -> dict[str, Any]:
    """Folded against stock on a text, from the weights."""
    import torch

    from twofold.explain.load import open_model
    from twofold.folding.parity import Texts, checked

    if text is not None and not text.is_file():
        raise ValueError(f"{text} is not a file: --text takes one file of text")
    opened = open_model(name)
    model: PreTrainedModel = opened.model if dtype is None else opened.model.to(getattr(torch, dtype))
    content = DEFAULT_TEXT.encode() if text is None else text.read_bytes()
    ids = opened.tokenizer().encode(content)[:CHECKED].astype("int64")
    most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or CHECKED
    ids = ids[: max(2, most - 16)]
    if len(ids) < 8:
        raise ValueError(f"the text has {len(ids)} tokens, and a check needs at least 8: give more")
    source = "a paragraph" if text is None else text.name
    found = checked(model, Texts(model, torch.from_numpy(ids)[None], (0,)), form)
    return {"text": source, "tokens": len(ids), "dtype": str(model.dtype).removeprefix("torch."), **found}
