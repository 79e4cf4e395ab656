"""The tables and lines that `twofold study` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from twofold.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table

    from twofold.study.progress_to_loss import Progress
    from twofold.study.recommendation import Advice
    from twofold.study.results import Results
    from twofold.study.statistics import VariantSummary

SIZES = ("heads", "kv_heads", "head_dim", "mlp")
PLAN_HEADINGS = {
    "label": "variant",
    "cache_bytes_per_token": "cache bytes/token",
    "macs_per_window": "MACs/window",
}


def plan_table(rows: list[dict[str, Any]], keys: Sequence[str]) -> Table:
    """Some `keys` of the planned runs."""
    shown = table()
    for key in keys:
        heading = PLAN_HEADINGS.get(key, key).replace("_", " ")
        justify: Literal["left", "right"] = "right" if isinstance(rows[0][key], int) else "left"
        shown.add_column(heading, justify=justify, no_wrap=key == "label", overflow="fold")
    for row in rows:
        shown.add_row(*(f"{row[key]:,}" if isinstance(row[key], int) else str(row[key]) for key in keys))
    return shown


def remarks(results: Results) -> list[str]:
    """What belongs to the table: the level to beat, how two savings go together, and what is missing."""
    from twofold.report.formats import interaction_text

    level = results.bigram_bits_per_byte
    untrained = [e.label for e in results.summary if e.bits_per_byte.mean >= level]
    found = [f"bigram model of bytes: {level:.3f} bits per byte"]
    if untrained:
        found.append(f"trained too little to be compared, no better than that model: {', '.join(untrained)}")
    found += [interaction_text(one) for one in results.interactions]
    if results.unfinished:
        found.append(f"not finished yet: {results.unfinished} of {results.unfinished + len(results.runs)} runs")
    return found + [f"{f.label}, seed {f.seed} diverged: {f.reason}" for f in results.diverged]


HEADINGS = ("variant", "parameters", "bits per byte", "to baseline", "cache bytes/token", "of largest", "verdict")
LEFT = ("variant", "verdict", "changed")


def _headings(results: Results) -> tuple[str, ...]:
    """What was changed against the study's own model has a column where anything was."""
    return (*HEADINGS, "changed") if any(run.changed for run in results.runs) else HEADINGS


def _rows(results: Results) -> list[list[str]]:
    from twofold.study.contenders import changes_text

    changed = {run.label: changes_text(run.changed) for run in results.runs}
    rows = []
    for entry in results.summary:
        spread = entry.bits_per_byte.standard_deviation
        quality = f"{entry.bits_per_byte.mean:.4f}" + (f" ± {spread:.4f}" if spread is not None else "")
        cache = (f"{entry.cache_bytes_per_token:,.0f}", f"{100 * entry.cache_ratio:.4g} %")
        row = [entry.label, f"{entry.parameters['total']:,}", quality, _to_baseline(entry), *cache, entry.verdict]
        row.append(changed[entry.label])
        rows.append(row[: len(_headings(results))])
    return rows


def _to_baseline(entry: VariantSummary) -> str:
    """The difference and its 95 % interval, where there is one."""
    found = entry.difference_to_baseline
    if found is None:
        return "baseline"
    interval = f" [{found.interval[0]:+.4f}, {found.interval[1]:+.4f}]" if found.interval else ""
    return f"{found.difference:+.4f}{interval}"


def summary(results: Results) -> Table:
    """One line per variant."""
    shown = table()
    for heading in _headings(results):
        shown.add_column(heading, justify="left" if heading in LEFT else "right")
    for row in _rows(results):
        shown.add_row(*row)
    return shown


def markdown(results: Results) -> str:
    """The same in Markdown."""
    headings = _headings(results)
    rule = [":--" if heading in LEFT else "--:" for heading in headings]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *_rows(results)))


def progress_table(progress: Sequence[Progress]) -> Table:
    """Training tokens to a loss: their mean, as a share of the baseline's, and seed by seed."""
    shown = table()
    for heading in ("variant", "tokens", "of baseline", "by seed"):
        shown.add_column(heading, justify="left" if heading == "variant" else "right")
    for one in progress:
        mean = "not reached" if one.mean is None else f"{one.mean:,.0f}"
        share = "–" if one.to_baseline is None else f"{100 * one.to_baseline:.4g} %"
        shown.add_row(one.label, mean, share, ", ".join("–" if n is None else f"{n:,}" for n in one.tokens))
    return shown


def advice_lines(advice: Advice) -> list[str]:
    """The answer, then its reasons and what would make it surer."""
    answers = {
        "take": f"take {advice.variant}",
        "cannot say": f"the data cannot say: {', '.join(advice.candidates)}",
        "none meets it": f"no variant here meets this; nearest is {advice.nearest}",
    }
    helps = ["would help:", *(f"  {one}" for one in advice.helps)] if advice.helps else []
    return [answers[advice.answer], "because:", *(f"  {reason}" for reason in advice.reasons), *helps]
