"""`twofold evaluate`: held-out loss of one trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.output import print_json, show, table

if TYPE_CHECKING:
    from twofold.data.corpus import Document

EXAMPLES = """[bold]Examples[/bold]
  twofold evaluate runs/demo/runs/QKV_seed0
  twofold evaluate runs/demo/runs/QKV_seed0 --data my-texts/ --json"""


def evaluate(
    model: Annotated[Path, typer.Argument(help="A folder that `train` or `study run` wrote.")],
    data: Annotated[
        str | None,
        typer.Option(help="Text to score, whole: a file, a folder, a glob.", show_default="the run's held-out text"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens per window.", show_default="the run's own, else 256")
    ] = None,
    batch: Annotated[int, typer.Option(help="Windows per forward pass.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Loss per real token, perplexity and bits per byte; every byte is scored once and no padding is."""
    from twofold.cli.progress import evaluating, quiet_libraries
    from twofold.evaluation.heldout import evaluate as score
    from twofold.models.load import load_model

    quiet_libraries()
    loaded = load_model(model)
    documents, own_context = _text(model, data)
    with evaluating() as progress:
        evaluation = score(loaded, documents, own_context if context is None else context, batch, progress)
    if as_json:
        print_json({"variant": loaded.config.variant, **evaluation.as_dict()})
        return
    shown = table(show_header=False)
    shown.add_column(style="bold")
    shown.add_column(justify="right")
    shown.add_row("variant", loaded.config.variant)
    shown.add_row("bits per byte", f"{evaluation.bits_per_byte:.4f}")
    shown.add_row("loss, nats per token", f"{evaluation.loss:.4f}")
    shown.add_row("perplexity per token", f"{evaluation.perplexity:.4f}")
    shown.add_row("tokens scored", f"{evaluation.tokens:,}")
    shown.add_row("bytes", f"{evaluation.bytes:,} in {len(documents):,} documents")
    show(shown)


def _text(model: Path, data: str | None) -> tuple[tuple[Document, ...], int]:
    """The documents to score and the context to score them in: as the model's run had them unless told otherwise."""
    from twofold.data.corpus import load_corpus
    from twofold.data.split import split
    from twofold.study.record import RECORD_FILE, read_record
    from twofold.study.spec import DataSpec

    file = next((f / RECORD_FILE for f in (model, model.parent) if (f / RECORD_FILE).is_file()), None)
    record = read_record(file) if file else None
    spec = DataSpec.model_validate(record.configuration["data"]) if record else DataSpec()
    if data is not None:
        return load_corpus(data).documents, spec.context
    if record is None:
        raise ValueError(f"{model} has no {RECORD_FILE} that names its held-out text: give text with --data")
    held_out = split(load_corpus(spec.source), spec.held_out)[1]
    if [(d.name, len(d.content)) for d in held_out] != [(d.name, d.bytes) for d in record.documents]:
        raise ValueError(f"{spec.source} has changed since the run, which held out other texts: give text with --data")
    return held_out, spec.context
