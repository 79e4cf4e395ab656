"""The part of `twofold convert` that shares: a model of ordinary attention as a variant, fitted to a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from twofold.cli.output import print_json, show, table

if TYPE_CHECKING:
    from twofold.conversion.sharing_plan import Sharing
    from twofold.explain.load import Opened

RECORD = "conversion.json"


def convert_sharing(
    opened: Opened,
    asked: Sharing,
    out: Path,
    *,
    text: list[str],
    tokens: int,
    context: int,
    test: str | None,
    as_json: bool,
) -> None:
    """Convert, write the folder with its record, and say what was lost."""
    from twofold.cli.progress import reading
    from twofold.conversion.convert import convert_in
    from twofold.conversion.share import share
    from twofold.conversion.source import source_tokenizer, write_model
    from twofold.conversion.windows import read_windows
    from twofold.environment import environment

    model = opened.model if opened.is_own else convert_in(opened.model)
    most = model.config.max_position_embeddings
    with reading("reading", of="the text") as stages:
        fitted = read_windows(text, opened.tokenizer(), tokens, min(context, most))
        made, record = share(model, asked, fitted.ids_BT, stages)
    perplexity = None if test is None else _perplexities((model, made), test, opened, min(context, most))
    tokenizer = source_tokenizer(opened)
    found = {
        "model": opened.name,
        **record.as_dict(),
        "text": {"sources": list(fitted.sources), "sha256": fitted.sha256, "windows": list(fitted.ids_BT.shape)},
        "perplexity": perplexity,
        "environment": environment(),
    }
    write_model(made, out, tokenizer, files={RECORD: json.dumps(found, indent=1) + "\n"})
    if as_json:
        print_json({"out": str(out), **found})
    else:
        show_sharing(found, out)


def show_sharing(found: dict[str, Any], out: Path) -> None:
    """What a record says, as a table; all layers in one line each."""
    layers = table()
    for head in ("layer", "variant", "cached", "lost", "of keys", "of values", "output lost", "refitted"):
        layers.add_column(head, justify="left" if head == "variant" else "right", no_wrap=True)
    for row in found["layers"]:
        names = ("lost", "lost_key", "lost_value", "output_lost_unfitted", "output_lost")
        layers.add_row(
            str(row["layer"]), row["variant"], f"{row['cache_numbers']:,}", *(f"{row[name]:.4f}" for name in names)
        )
    show(layers, f"{found['variant']} by {found['method']}, fitted to {found['tokens']:,} tokens.")
    before, after = found["cache_numbers_before"], found["cache_numbers"]
    typer.echo(f"Cached numbers per token: {before:,} before, {after:,} now ({found['cache_share']:.1%}).")
    if found["perplexity"]:
        typer.echo(
            f"Perplexity on {found['perplexity']['source']}: {found['perplexity']['before']:.2f} before, "
            f"{found['perplexity']['after']:.2f} now ({found['perplexity']['tokens']:,} tokens)."
        )
    typer.echo(f"{out} is written.")


def _perplexities(models: tuple[Any, Any], source: str, opened: Opened, context: int) -> dict[str, Any]:
    from twofold.cli.progress import evaluating
    from twofold.data.corpus import load_corpus
    from twofold.evaluation.heldout import evaluate

    corpus, found = load_corpus(source), []
    for model in models:
        with evaluating() as progress:
            found.append(
                evaluate(model, corpus.documents, context, 2, progress=progress, tokenizer=opened.tokenizer())
            )
    return {
        "source": source,
        "sha256": corpus.sha256,
        "tokens": found[0].tokens,
        "before": found[0].perplexity,
        "after": found[1].perplexity,
    }
