"""`twofold explain`: what a model's projections do, how alike they are, and what its heads look at."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.explain_tables import heading, remarks, tables
from twofold.cli.grids import drawn, markdown
from twofold.cli.output import print_json, show
from twofold.explain.record import MOST_MODELS

if TYPE_CHECKING:
    from twofold.explain.reading import Given, Text
    from twofold.explain.record import Explanation

EXAMPLES = """[bold]Examples[/bold]
  twofold explain runs/demo/runs/QKV_seed0
  twofold explain runs/demo/runs/QKV_seed0 --text story.txt --out explained
  twofold explain SmolLM2-135M.gguf --text story.txt --tokens 512 --layers 0,3-5
  twofold explain runs/demo/runs/QKV_seed0 runs/demo/runs/K=V_seed0 --out compared
  twofold explain runs/synthetic/runs/QKV_seed0 --task own --out explained
  twofold explain --show compared/explain.json --markdown"""

TOKENS = CONTEXT = 512
LARGEST_SEED = 2**63 - 1


def explain(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="A run or model folder, any folder or GGUF file that transformers opens, or a name on the Hugging "
            "Face hub; two are put side by side.",
            metavar="MODEL [MODEL]",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            help="A text for the model to read: measures of its activations and attention.",
            show_default="weights alone",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Examples to read instead of a text: `own`, of the task that a run was trained on, or a task's name, "
            "such as reverse.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of the text, from its beginning.", show_default=f"{TOKENS}")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--context",
            help="Tokens of a window, at most, and never more than the model's positions.",
            show_default=f"{CONTEXT}",
        ),
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
    sharing: Annotated[
        bool,
        typer.Option(
            "--sharing",
            help="Measure what sharing keys and values costs, in one layer at a time: two passes over half of the text "
            "for each layer.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the random baselines.", min=0, max=LARGEST_SEED)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for explain.json and explain.html.", show_default=False, file_okay=False)
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--show",
            help="Measure nothing, and print the tables of an explain.json; with --out draw its page again.",
            show_default=False,
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print explain.json without its attention maps: an object, or a list of two.")
    ] = False,
) -> None:
    """How alike a model's projections are, their rank, circuits and cost, layer by layer, beside random baselines.

    Without --text or --task only weights are read. With --out everything is drawn on one page.
    """
    if record is not None:
        if models:
            raise ValueError(f"--show prints what {record} holds: leave {models[0]} out, or measure it without --show")
        measuring = {
            "--text": text,
            "--task": task,
            "--tokens": tokens,
            "--context": window,
            "--layers": layers,
            "--patterns": patterns,
            "--sharing": sharing or None,
            "--seed": seed or None,
        }
        _show(record, measuring, out, as_markdown, as_json)
        return
    if not models:
        raise ValueError("give a model to explain, or a record with --show")
    if len(models) > MOST_MODELS:
        raise ValueError(f"explain takes one model or two to compare, and {len(models)} are given")
    chosen = None if layers is None else parse_layers(layers)
    if task is not None and (text is not None or window is not None):
        raise ValueError("--task reads examples as they are: leave --text and --context out")
    given = None if task else _text(text, tokens, window)
    from twofold.cli.progress import quiet_libraries, reading
    from twofold.explain.explain import explain as measure

    quiet_libraries()
    found: list[Explanation] = []
    for model in models:
        with reading("opening", model) as progress:
            found.append(
                measure(
                    model,
                    text=_examples(model, task, tokens) if task else given,
                    layers=chosen,
                    patterns=given is not None if patterns is None else patterns,
                    sharing=sharing,
                    seed=seed,
                    command=shlex.join(["twofold", *context.obj]),
                    progress=progress,
                )
            )
    written = [] if out is None else _write(found, out)
    _print(found, as_markdown, as_json, written)


def _show(record: Path, measuring: Mapping[str, object], out: Path | None, as_markdown: bool, as_json: bool) -> None:
    """A record as it is. ValueError for options of a measurement, which would change nothing."""
    from twofold.explain.record import read_explanations

    if asked := [name for name, value in measuring.items() if value is not None]:
        raise ValueError(f"--show measures nothing: leave {', '.join(asked)} out, or measure without --show")
    found = read_explanations(record)
    written = [] if out is None else _write(found, out)
    _print(found, as_markdown, as_json, written)


def _print(found: list[Explanation], as_markdown: bool, as_json: bool, written: Sequence[Path] = ()) -> None:
    if as_json:
        from twofold.explain.record import as_json as recorded

        told = [recorded(one, maps=False) for one in found]
        print_json(told[0] if len(told) == 1 else told)
    elif as_markdown:
        typer.echo("\n\n".join(map(markdown, tables(found))))
    else:
        below = [line for grid in tables(found) for line in (drawn(grid), "")]
        show(*heading(found), "", *below, *remarks(found), *map(str, written))


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


def _text(path: Path | None, tokens: int | None, window: int | None) -> Text | None:
    counts = {"--tokens": TOKENS if tokens is None else tokens, "--context": CONTEXT if window is None else window}
    if path is None:
        if given := [name for name, count in zip(counts, (tokens, window), strict=True) if count is not None]:
            raise ValueError(f"{given[0]} counts the tokens of a text: give one with --text, or leave {given[0]} out")
        return None
    for name, count in counts.items():
        if count < 2:
            raise ValueError(f"{name} must be at least 2, not {count}: a token has no other to look at alone")
    if not path.is_file():
        raise ValueError(f"{path} is not a file: --text takes one file of text")
    content = path.read_bytes()
    from twofold.explain.reading import Text

    return Text(path.name, content, *counts.values())


def _examples(model: str, task: str, tokens: int | None) -> Given:
    """Examples of a task for this model; of `own`, of the task in its run's record."""
    from twofold.trials.reading import given, task_text

    return given(task_text(model, TOKENS if tokens is None else tokens, None if task == "own" else task))


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
