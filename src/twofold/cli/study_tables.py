"""The tables and lines that `twofold study` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from twofold.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table

    from twofold.study.gaps import Gaps
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
    """What belongs to the table: who was trained too little, the level to beat, whose bytes per token fall, how two
    savings go together, and what is missing.
    """
    from twofold.report.formats import interaction_text
    from twofold.report.headline import bounded_text

    found = warnings(results)
    found.append(f"bigram model of bytes: {results.bigram_bits_per_byte:.3f} bits per byte")
    found += [bounded_text(results)] if results.bounded else []
    found += [interaction_text(one) for one in results.interactions]
    if results.unfinished:
        found.append(f"not finished yet: {results.unfinished} of {results.total} runs")
    return found + [f"{f.label}, seed {f.seed} diverged: {f.reason}" for f in results.diverged]


def warnings(found: Results | Gaps) -> list[str]:
    """What must not be overlooked whichever way the table of a study or of a family is shown."""
    from twofold.report.gaps import gap_remarks
    from twofold.report.headline import untrained
    from twofold.study.gaps import Gaps

    if isinstance(found, Gaps):
        return gap_remarks(found)
    return [untrained(found)] if found.untrained else []


HEADINGS = ("variant", "parameters", "bits per byte", "to baseline", "cache bytes/token", "of largest", "verdict")
LEFT = ("variant", "verdict", "changed", "ran with", "packing", "size")


class Lines(NamedTuple):
    """A table's headings and rows as finished texts, whichever way it is printed."""

    headings: list[str]
    rows: list[list[str]]


def _headings(results: Results) -> list[str]:
    """A sweep's points, and what was changed against the study's own model, have a column where there are any."""
    changed = ["changed"] if any(run.changed for run in results.runs) else []
    return [*HEADINGS, *(["ran with"] if results.sweep else []), *changed]


def _rows(results: Results) -> list[list[str]]:
    from twofold.report.sweep import ran_with
    from twofold.study.contenders import changes_text

    points = ran_with(results)
    changed = {run.label: changes_text(run.changed) for run in results.runs}
    rows = []
    for entry in results.summary:
        spread = entry.bits_per_byte.standard_deviation
        quality = f"{entry.bits_per_byte.mean:.4f}" + (f" ± {spread:.4f}" if spread is not None else "")
        cache = (f"{entry.cache_bytes_per_token:,.0f}", f"{100 * entry.cache_ratio:.4g} %")
        row = [entry.label, f"{entry.parameters['total']:,}", quality, _to_baseline(entry), *cache, entry.verdict]
        row += [points[entry.label]] if points else []
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


def summary(results: Results) -> Lines:
    """One line per variant."""
    return Lines(_headings(results), _rows(results))


def sweep_points(results: Results) -> Lines:
    """Bits per byte on the picking documents: one line per variant, one column per point, the chosen one marked."""
    from twofold.report.sweep import sweep_table

    found = sweep_table(results)
    rows = [[label, *(c.text + (" ✓" if c.kind == "chosen" else "") for c in cells)] for label, cells in found.rows]
    return Lines(["variant", *found.points], rows)


def gap_table(gaps: Gaps) -> Lines:
    """One line per variant and member of a family."""
    from twofold.report.gaps import gap_headings, gap_rows

    return Lines(gap_headings(gaps), gap_rows(gaps))


def scores(found: Results | Gaps) -> Lines:
    """How sharply each variant attends and how large its gradient was; no rows where no run was measured so."""
    from twofold.report.scores import score_table

    return Lines(*score_table(found))


def in_terminal(lines: Lines) -> Table:
    """A table for a terminal."""
    shown = table()
    for heading in lines.headings:
        shown.add_column(heading, justify="left" if heading in LEFT else "right")
    for row in lines.rows:
        shown.add_row(*row)
    return shown


def in_markdown(lines: Lines) -> str:
    """The same in Markdown."""
    rule = [":--" if heading in LEFT else "--:" for heading in lines.headings]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines.headings, rule, *lines.rows))


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
