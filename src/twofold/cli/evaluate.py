"""`twofold evaluate`: held-out loss of one trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.cli.evaluate_tasks import evaluate_tasks
from twofold.cli.output import print_json, show, table
from twofold.study.settings import apply_settings

if TYPE_CHECKING:
    from twofold.data.corpus import Document
    from twofold.evaluation.heldout import Evaluation
    from twofold.study.data_spec import DataSpec
    from twofold.study.texts import Stages

EXAMPLES = """[bold]Examples[/bold]
  twofold evaluate runs/demo/runs/QKV_seed0
  twofold evaluate runs/demo/runs/QKV_seed0 --data my-texts/ --json
  twofold evaluate runs/demo/runs/QKV_seed0 --cache-dtype int8
  twofold evaluate runs/mine --data dataset:my-dataset --set data.split=test --set data.column=story
  twofold evaluate runs/mine --tasks twofold_local
  twofold evaluate runs/mine --tasks hellaswag,arc_easy --num-fewshot 5 --limit 200"""

PARTS = ("data",)
"""Parts of a study file whose keys `--set` takes."""

WINDOWS = ("context", "packing")
"""Keys of `data` that say how a text is cut, and not which text it is."""

TOLERATED = 0.5
"""Percent of bits per byte that a cache's rounding may cost without a warning."""


def evaluate(
    model: Annotated[Path, typer.Argument(help="A folder that `train`, `study run`, `convert` or `heal` wrote.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Text to score, whole: a file, a folder, a glob, or dataset:NAME_OR_FOLDER.",
            show_default="the run's held-out text",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With --data any key of data, such as data.column=story; without, data.packing. May be given again.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens per window.", show_default="the run's own, else 256")
    ] = None,
    batch: Annotated[int, typer.Option(help="Windows per forward pass.")] = 16,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks of lm-evaluation-harness instead, with commas between; twofold_local needs no network.",
            show_default=False,
        ),
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(help="Solved examples before each document.", show_default="the task's own")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Documents per task.", show_default="all")] = None,
    task_path: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with task files of your own; may be given again.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the tasks' results here.", show_default=False)] = None,
    cache_dtype: Annotated[
        str | None,
        typer.Option(help="Also score with rows kept as int8, bfloat16 or float16.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Loss per real token, perplexity and bits per byte; every token is scored once, in windows as the run had them.

    With --tasks: the values of benchmark tasks, with standard errors and what guessing would reach.
    """
    if tasks is not None:
        if data or settings or cache_dtype:
            raise ValueError("tasks bring their own text: leave out --data, --set and --cache-dtype")
        evaluate_tasks(model, tasks, num_fewshot, limit, task_path or [], context, batch, out, as_json)
        return
    if num_fewshot is not None or limit is not None or task_path or out:
        raise ValueError("--num-fewshot, --limit, --task-path and --out belong to tasks: name some with --tasks")
    from twofold.cli.progress import evaluating, quiet_libraries, reading
    from twofold.data.tokenizer import load_tokenizer
    from twofold.evaluation.heldout import evaluate as score
    from twofold.models.load import load_model

    quiet_libraries()
    loaded = load_model(model)
    tokenizer = load_tokenizer(Path(loaded.name_or_path))
    with reading() as stages:
        documents, spec = _text(model, data, settings or [], stages)
    window = spec.context if context is None else context

    def scores(dtype: str | None) -> Evaluation:
        with evaluating() as progress:
            return score(
                loaded, documents, window, batch, progress, tokenizer=tokenizer, packing=spec.packing, cache_dtype=dtype
            )

    rounded = cache_dtype and scores(cache_dtype)  # before the exact ones: a wrong name is told at once
    exact = scores(None)
    cost = _cost_of_rounding(exact, rounded, cache_dtype) if cache_dtype and rounded else {}
    if as_json:
        print_json({"variant": loaded.config.described, **exact.as_dict(), **cost})
        return
    _show(loaded.config.described, exact, cost)


def _cost_of_rounding(exact: Evaluation, rounded: Evaluation, cache_dtype: str) -> dict[str, Any]:
    percent = 100 * (rounded.bits_per_byte / exact.bits_per_byte - 1)
    if percent > TOLERATED:
        typer.echo(
            f"Warning: a cache of {cache_dtype} costs {percent:.2f} % of bits per byte, more than {TOLERATED} %",
            err=True,
        )
    return {"cache_dtype": cache_dtype, "cached_bits_per_byte": rounded.bits_per_byte, "cached_percent": percent}


def _show(variant: str, evaluation: Evaluation, cost: dict[str, Any]) -> None:
    shown = table(show_header=False)
    shown.add_column(style="bold")
    shown.add_column(justify="right")
    shown.add_row("variant", variant)
    shown.add_row("bits per byte", f"{evaluation.bits_per_byte:.4f}")
    shown.add_row("loss, nats per token", f"{evaluation.loss:.4f}")
    shown.add_row("perplexity per token", f"{evaluation.perplexity:.4f}")
    shown.add_row("tokens scored", f"{evaluation.tokens:,}")
    shown.add_row("bytes", f"{evaluation.bytes:,} in {len(evaluation.documents):,} documents")
    if cost:
        kept = f"{cost['cached_bits_per_byte']:.4f} ({cost['cached_percent']:+.3f} %)"
        shown.add_row(f"bits per byte, {cost['cache_dtype']} rows", kept)
    show(shown)


def _text(model: Path, data: str | None, settings: list[str], stages: Stages) -> tuple[tuple[Document, ...], DataSpec]:
    """The documents to score, and the windows to score them in: as the model's run had them unless told otherwise."""
    from twofold.data.tokenizer import BYTES_NAME
    from twofold.study.load import checked
    from twofold.study.record import RECORD_FILE, read_record
    from twofold.study.texts import SplitTexts, whole_text
    from twofold.trials.record import is_of_a_task

    file = next((f / RECORD_FILE for f in (model, model.parent) if (f / RECORD_FILE).is_file()), None)
    if file and is_of_a_task(file):
        raise ValueError(f"{model} was trained on a task and reads no text: its study has its scores")
    record = read_record(file) if file else None
    # The model has its tokenizer with it; the one that the run names may be elsewhere by now.
    own = {**(record.configuration["data"] if record else {}), "tokenizer": BYTES_NAME}
    if data is None and record is None:
        raise ValueError(f"{model} has no {RECORD_FILE} that names its held-out text: give text with --data")
    if data is not None:
        own = {key: own[key] for key in ("context", "packing", "tokenizer") if key in own} | {"source": data}
    # A study around it, so that a fault is explained as in a study file; its model takes any context.
    content = {"name": "evaluate", "variants": ["QKV"], "tokens": 1, "model": {"positions": 2**31}, "data": dict(own)}
    apply_settings(content, settings, PARTS)
    spec = checked(content).data
    if record is None or data is not None:
        return whole_text(spec, stages), spec
    _check_same_text(spec, own)
    texts = SplitTexts.read(spec, stages)
    if texts.corpus.sha256 != record.configuration["corpus"]["sha256"]:
        raise ValueError(f"{spec.source} has changed since the run, which held out other texts: give text with --data")
    return texts.held_out, spec


def _check_same_text(spec: DataSpec, own: dict[str, Any]) -> None:
    """The run's held-out text may be cut otherwise; with another split, what it was trained on could be scored."""
    from twofold.study.data_spec import DataSpec

    of_run = DataSpec.model_validate(own).model_dump(exclude=set(WINDOWS))
    changed = [name for name, value in of_run.items() if getattr(spec, name) != value]
    if changed:
        raise ValueError(
            f"data.{changed[0]} says which text the run held out, and stays as it was: without --data only "
            f"{' and '.join(f'data.{name}' for name in WINDOWS)} may be set"
        )
