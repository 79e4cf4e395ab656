"""The tables of `twofold heal`: what was measured of each model, and how they were trained."""

from __future__ import annotations

from rich.table import Table

from twofold.cli.grids import Grid, drawn, markdown
from twofold.cli.output import table
from twofold.healing.record import HealRecord
from twofold.report.heal_words import model_rows, training_rows

MODELS = ["model", "variant", "perplexity", "bits/byte", "cache bytes\n/ token", "of the\nteacher’s", "recall"]
TRAININGS = ["trained", "tokens", "steps", "numbers\nthat learn", "time", "tokens/s", "best of\nthe sample"]


def heal_tables(record: HealRecord) -> list[Table | str]:
    """For the terminal, one below the other."""
    return [drawn(models_grid(record)), "", drawn(trainings_grid(record)), "", _summary(record)]


def heal_markdown(record: HealRecord) -> str:
    """Both tables as Markdown, and what the numbers rest on."""
    ratios = [
        f"- perplexity, healed to {of}: {record.ratios[name]:.4f}"
        for of in ("control", "teacher")
        if (name := f"perplexity_healed_to_{of}") in record.ratios
    ]
    said = [*ratios, f"- {record.command}", f"- {record.text.tokens:,} tokens of text, {record.text.passes:.2f} passes"]
    return "\n\n".join([markdown(models_grid(record)), markdown(trainings_grid(record)), "\n".join(said)])


def models_grid(record: HealRecord) -> Grid:
    """A line for each model: quality, cache and recall."""
    return Grid(MODELS, [list(row) for row in model_rows(record)], labels=2)


def trainings_grid(record: HealRecord) -> Grid:
    """A line for each model that was trained."""
    return Grid(TRAININGS, [list(row) for row in training_rows(record)])


def _summary(record: HealRecord) -> Table:
    shown = table(show_header=False)
    shown.add_column(style="bold")
    shown.add_column()
    text, scored, recall = record.text, record.before.validation, record.healed.recall
    for of in ("control", "teacher"):
        if (ratio := record.ratios.get(f"perplexity_healed_to_{of}")) is not None:
            shown.add_row(f"perplexity, healed to {of}", f"{ratio:.4f}")
    if record.healed.validation.perplexity > record.converted.validation.perplexity:
        shown.add_row("worse than converted", "learning lost more than it healed: take more --tokens, or a lower --lr")
    rank = record.settings["lora"]
    shown.add_row("weights that learn", f"adapters of rank {rank}" if rank else str(record.settings["train"]))
    shown.add_row("text", f"{text.tokens:,} tokens, {text.passes:.2f} passes")
    shown.add_row(
        "held out", f"{scored.tokens:,} tokens, {scored.bytes:,} bytes; the sample {text.sampled_tokens:,} tokens"
    )
    shown.add_row("recall", f"{recall.sequences} random sequences of {recall.length} tokens, each read twice")
    if record.control_was_there:
        shown.add_row("control", "made earlier, for equal settings")
    return shown
