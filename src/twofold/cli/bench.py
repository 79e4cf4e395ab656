"""`twofold bench`: measure this machine against alternatives, in one run, and say how far its roof is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.bench_tables import markdown, remarks, summary
from twofold.cli.output import print_json, show
from twofold.cli.quantities import parse_bytes

if TYPE_CHECKING:
    from twofold.bench.record import BenchRecord, Machine, Row
    from twofold.bench.sizes import Effort
    from twofold.bench.timing import Watch

    Measure = Callable[[Effort, Machine, Watch], tuple[list[Row], list[str]]]

app = typer.Typer(
    no_args_is_help=True,
    help="Measure against alternatives in the same run: attention, generation, memory, training, prefill, folding, "
    "exports.",
)

REPEATS = {"attention": 15, "generate": 7, "memory": 1, "train": 7, "prefill": 7, "fold": 9, "export": 15}
QUICK_REPEATS = 3


def _examples(*lines: str) -> str:
    return "\n  ".join(("[bold]Examples[/bold]", *(f"twofold bench {line}" for line in lines)))


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quick = Annotated[bool, typer.Option("--quick", help="A few sizes and repeats: about a minute.")]
Repeats = Annotated[
    int | None,
    typer.Option(min=1, help="Rounds; each times ours and every alternative once.", show_default="by bench; quick: 3"),
]
Out = Annotated[Path | None, typer.Option(help="Also write the record as JSON.", show_default=False)]
Image = Annotated[Path | None, typer.Option(help="Also draw it, as .svg, .png or .pdf.", show_default=False)]


@app.command("attention", epilog=_examples("attention --quick", "attention --out attention.json --image attention.svg"))
def attention(
    context: typer.Context,
    quick: Quick = False,
    repeats: Repeats = None,
    as_json: AsJson = False,
    out: Out = None,
    image: Image = None,
) -> None:
    """One decode step of one layer over a long cache: our kernel against torch's fused attention.

    16 query heads of 64 dims; float32, bfloat16 and int8 rows; torch with separate keys and values and with one tensor.
    """
    from twofold.bench.attention import measure

    _run("attention", measure, _effort("attention", quick, repeats), context.obj, (as_json, out, image))


@app.command("generate", epilog=_examples("generate --quick", "generate --image time-per-token.svg"))
def generate(
    context: typer.Context,
    quick: Quick = False,
    repeats: Repeats = None,
    as_json: AsJson = False,
    out: Out = None,
    image: Image = None,
) -> None:
    """Time per token of a decoder of 15 million parameters, against the length of its context.

    Greedy `generate()` in float32, after a prefill that is not timed; beside transformers' Llama of equal sizes
    (dynamic and static cache) and llama.cpp with the same weights.
    """
    from twofold.bench.generate import measure

    _run("generate", measure, _effort("generate", quick, repeats), context.obj, (as_json, out, image))


@app.command(
    "memory",
    epilog=_examples(
        "memory --preset 1.2B --context 32768",
        "memory --preset 300M --batch 2",
        "memory --limit 512MiB --image fit.svg",
    ),
)
def memory(
    context: typer.Context,
    preset: Annotated[
        str | None, typer.Option(help="15M, or a preset's name.", show_default="1.2B; with --limit 15M")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--context", min=1, help="Cached tokens of a sequence.", show_default="32768")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    dtype: Annotated[str, typer.Option(help="What rows are kept in.")] = "float32",
    limit: Annotated[
        str | None,
        typer.Option(help="Generate within that much memory, such as 512MiB, and find the longest context."),
    ] = None,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
    image: Image = None,
) -> None:
    """What real caches take, by the system's own count: one process for each variant. Needs Linux.

    Without --limit, a preallocated cache is filled, without a model. With it, a model with random weights generates
    in a process that is refused memory beyond it, Python and torch included.
    """
    from twofold.bench.memory import QUICK_CONTEXT, Question, measure

    capped = None if limit is None else parse_bytes(limit)
    preset = preset or ("1.2B" if limit is None else "15M")
    length = tokens or (QUICK_CONTEXT if quick else 32_768)
    question = Question(preset, length, batch, dtype, capped)

    def asked(effort: Effort, machine: Machine, watch: Watch) -> tuple[list[Row], list[str]]:
        return measure(question, effort, watch)

    _run("memory", asked, _effort("memory", quick, 1), context.obj, (as_json, out, image))


@app.command("train", epilog=_examples("train --quick", "train --out train.json"))
def train(
    context: typer.Context,
    quick: Quick = False,
    repeats: Repeats = None,
    as_json: AsJson = False,
    out: Out = None,
    image: Image = None,
) -> None:
    """Training steps (forward, backward, AdamW) beside transformers' Llama and GPT-2 and x-transformers."""
    from twofold.bench.train import measure

    _run("train", measure, _effort("train", quick, repeats), context.obj, (as_json, out, image))


@app.command("prefill", epilog=_examples("prefill --quick", "prefill --json"))
def prefill(
    context: typer.Context,
    quick: Quick = False,
    repeats: Repeats = None,
    as_json: AsJson = False,
    out: Out = None,
    image: Image = None,
) -> None:
    """A prompt of 2,048 tokens through a decoder of 15 million parameters, beside transformers' Llama."""
    from twofold.bench.prefill import measure

    _run("prefill", measure, _effort("prefill", quick, repeats), context.obj, (as_json, out, image))


@app.command("fold", epilog=_examples("fold --quick", "fold --out fold.json"))
def fold(
    context: typer.Context,
    quick: Quick = False,
    repeats: Repeats = None,
    as_json: AsJson = False,
    out: Out = None,
    image: Image = None,
) -> None:
    """A decode step of a few layers of DeepSeek-V2-Lite, Gemma 4 31B, GPT-2 and OPT-1.3B, folded and as they are.

    Random weights, dynamic caches filled with random numbers.
    """
    from twofold.bench.fold import measure

    _run("fold", measure, _effort("fold", quick, repeats), context.obj, (as_json, out, image))


@app.command("export", epilog=_examples("export --quick", "export --out export.json"))
def export(
    context: typer.Context,
    quick: Quick = False,
    repeats: Repeats = None,
    as_json: AsJson = False,
    out: Out = None,
    image: Image = None,
) -> None:
    """A token in llama.cpp after 4,096 others: K=V decoupled as exported, beside keys and values apart, and GQA.

    Weights and rows in float16, flash attention on; caches are what llama.cpp says of them.
    """
    from twofold.bench.export import measure

    _run("export", measure, _effort("export", quick, repeats), context.obj, (as_json, out, image))


@app.command("show", epilog=_examples("show attention.json", "show attention.json --markdown"))
def show_record(
    record: Annotated[Path, typer.Argument(help="A file that --out wrote.")],
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    image: Image = None,
    as_json: AsJson = False,
) -> None:
    """Show what was measured before, on this machine or another."""
    from twofold.bench.record import read_bench

    found = read_bench(record)
    if as_markdown:
        typer.echo(markdown(found))
        _draw(found, image)
        return
    _print(found, as_json, image)


def _effort(bench: str, quick: bool, repeats: int | None) -> Effort:
    from twofold.bench.sizes import Effort

    return Effort(repeats or (min(QUICK_REPEATS, REPEATS[bench]) if quick else REPEATS[bench]), quick)


def _run(
    bench: str, measure: Measure, effort: Effort, arguments: list[str], wanted: tuple[bool, Path | None, Path | None]
) -> None:
    """Measure, then print, write and draw what is wanted: JSON or not, the record's file, the image's."""
    from twofold.bench import machine
    from twofold.bench.record import BenchRecord, check_writable, write_bench
    from twofold.cli.progress import quiet_libraries

    as_json, out, image = wanted
    check_writable((out, image))
    if image is not None:
        from twofold.report.look import check_drawable

        check_drawable(image)  # now, and not after minutes of measuring
    quiet_libraries()
    with _measuring(bench) as watch:
        watch(0, 0, "the machine's roof")
        here = machine.examine()
        rows, left_out = measure(effort, here, watch)
    found = BenchRecord(
        bench=bench,
        machine=machine.after(here),
        rows=tuple(rows),
        repeats=effort.repeats,
        quick=effort.quick,
        command=shlex.join(["twofold", *arguments]),
        left_out=tuple(left_out),
    )
    if out is not None:
        write_bench(found, out)
    _print(found, as_json, image)


def _print(record: BenchRecord, as_json: bool, image: Path | None) -> None:
    if as_json:
        print_json(record.model_dump(mode="json"))
    else:
        show(summary(record), "", *remarks(record))
    _draw(record, image)


def _draw(record: BenchRecord, image: Path | None) -> None:
    if image is not None:
        from twofold.report.bench import bench_figure, height
        from twofold.report.look import write_image

        write_image(bench_figure(record), image, height=height(record))


@contextmanager
def _measuring(bench: str) -> Iterator[Watch]:
    """A bar on a terminal, and a line per piece of work elsewhere; both on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, markup=False, highlight=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(bench, total=None)

        def watch(done: int, total: int, following: str) -> None:
            bar.update(task, completed=done, total=total or None, description=f"{bench}: {following}")
            if following and not console.is_terminal:
                place = f"{done + 1} of {total}: " if total else ""
                console.print(f"bench {bench}: {place}{following}", soft_wrap=True)

        yield watch
