"""`twofold explain`: what a model's projections do, how alike they are, and what its heads look at."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.explain_tables import heading, layer_table, remarks
from twofold.cli.output import print_json, show

if TYPE_CHECKING:
    from twofold.explain.reading import Text
    from twofold.explain.record import Explanation

EXAMPLES = """[bold]Examples[/bold]
  twofold explain runs/demo/runs/QKV_seed0
  twofold explain runs/demo/runs/QKV_seed0 --text story.txt --out explained
  twofold explain SmolLM2-135M.gguf --text story.txt --tokens 512 --layers 0,3-5
  twofold explain runs/demo/runs/QKV_seed0 runs/demo/runs/K=V_seed0 --out compared"""

TOKENS = 512
MOST_MODELS = 2


def explain(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            help="A run or model folder, any folder or GGUF file that transformers opens, or a name on the Hugging "
            "Face hub; two are put side by side.",
            metavar="MODEL [MODEL]",
        ),
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            help="A text for the model to read: measures of its activations and attention.",
            show_default="weights alone",
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of the text, from its beginning.", show_default=f"{TOKENS}")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers from 0, such as 0,3-5.", show_default="all")] = None,
    patterns: Annotated[
        bool | None,
        typer.Option(
            "--patterns/--no-patterns",
            help="Let the model read repeated random tokens: previous-token and induction scores.",
            show_default="with --text",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random baselines.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for explain.json and explain.html.", show_default=False, file_okay=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print explain.json without its attention maps: an object, or a list of two.")
    ] = False,
) -> None:
    """How alike a model's projections are, their rank, circuits and cost, layer by layer, beside random baselines.

    Without --text only weights are read. With --out everything is drawn on one page.
    """
    if len(models) > MOST_MODELS:
        raise ValueError(f"explain takes one model or two to compare, and {len(models)} are given")
    chosen = None if layers is None else parse_layers(layers)
    given = _text(text, tokens)
    from twofold.cli.progress import quiet_libraries, reading
    from twofold.explain.explain import explain as measure
    from twofold.explain.record import as_json as recorded

    quiet_libraries()
    found: list[Explanation] = []
    for model in models:
        with reading("opening", model) as progress:
            found.append(
                measure(
                    model,
                    text=given,
                    layers=chosen,
                    patterns=given is not None if patterns is None else patterns,
                    seed=seed,
                    command=shlex.join(["twofold", *context.obj]),
                    progress=progress,
                )
            )
    written = [] if out is None else _write(found, out)
    if as_json:
        told = [recorded(one, maps=False) for one in found]
        print_json(told[0] if len(told) == 1 else told)
        return
    show(*heading(found), "", layer_table(found), "", *remarks(found), *map(str, written))


def parse_layers(text: str) -> tuple[int, ...]:
    """Layer numbers from `0,3-5`, sorted, each once. ValueError, naming the accepted forms, for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:\s*-\s*(\d{1,5}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(f"cannot read --layers {text!r}: write numbers from 0 and ranges, such as 0,3-5")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def _text(path: Path | None, tokens: int | None) -> Text | None:
    if path is None:
        if tokens is not None:
            raise ValueError("--tokens counts the tokens of a text: give one with --text, or leave --tokens out")
        return None
    if tokens is not None and tokens < 2:
        raise ValueError(f"--tokens must be at least 2, not {tokens}: a token has no other to look at alone")
    if not path.is_file():
        raise ValueError(f"{path} is not a file: --text takes one file of text")
    content = path.read_bytes()
    from twofold.explain.reading import Text

    return Text(path.name, content, TOKENS if tokens is None else tokens)


def _write(found: list[Explanation], out: Path) -> list[Path]:
    import json

    from twofold.explain.record import EXPLAIN_FILE
    from twofold.explain.record import as_json as recorded
    from twofold.report.explain_page import write_explanations
    from twofold.study.record import write_atomically

    out.mkdir(parents=True, exist_ok=True)
    told = [recorded(one, maps=True) for one in found]
    content = json.dumps(told[0] if len(told) == 1 else told, ensure_ascii=False)
    write_atomically(out / EXPLAIN_FILE, content.encode())
    return [out / EXPLAIN_FILE, write_explanations(found, out)]
