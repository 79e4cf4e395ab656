"""A family in tables and a figure: what each variant loses to the baseline along the axes."""

from __future__ import annotations

from collections.abc import Iterable

import plotly.graph_objects as go

from twofold.report.formats import below_bigram_text, bits_text, list_text, signed_text
from twofold.report.look import LINE_COLOURS, NEUTRAL, error_bars, plain, styled
from twofold.study.axes import values_text
from twofold.study.gaps import Gap, Gaps, MemberGaps
from twofold.study.statistics import PerplexityGap
from twofold.study.sweep import point_text

HEADINGS = ("variant", "parameters", "bits per byte", "to baseline", "perplexity, or gap in %", "cache bytes/token")
LEFT = ("packing", "size", "variant", "ran with")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond-open", "square-open", "triangle-up")
TICK_RATIO = 1.15  # numbers on the axis nearer to each other than this share one tick


def gap_headings(gaps: Gaps) -> list[str]:
    """The table's columns: the axes, then what is known of each variant there."""
    return [*gaps.axes, *HEADINGS, *(["ran with"] if _swept(gaps) else [])]


def gap_rows(gaps: Gaps) -> list[list[str]]:
    """One row for each variant in each member, as finished texts under `gap_headings`."""
    return [row for member in gaps.members for row in _member_rows(gaps, member)]


def place_texts(member: MemberGaps) -> list[str]:
    """Where a member stands on the axes, as the cells of a table."""
    return [f"{value:,}" if isinstance(value, int) else value for value in member.values.values()]


def gap_remarks(gaps: Gaps) -> list[str]:
    """What belongs to the table: who was trained too little, members without results or with another baseline, and
    runs that are missing.
    """
    found = [
        f"Trained too little to be compared, with {values_text(member.values)}: {below_bigram_text(member.untrained)}."
        for member in gaps.members
        if member.untrained
    ]
    empty = [values_text(member.values) for member in gaps.members if not member.variants]
    if empty:
        found.append(f"No results yet: {'; '.join(empty)}.")
    for member in gaps.members:
        where = values_text(member.values)
        if member.variants and member.baseline != gaps.baseline:
            found.append(
                f"With {where}, differences are to {member.baseline}, because {gaps.baseline} has no finished run "
                "there; the figure leaves them out."
            )
        if member.unfinished:
            found.append(f"Not finished yet with {where}: {member.unfinished} runs.")
        if member.diverged:
            found.append(f"Diverged with {where}: {member.diverged} runs.")
    return found


def gaps_figure(gaps: Gaps) -> go.Figure:
    """Perplexity over the baseline's, in percent with 95 % intervals, against the context, or else the parameters.

    One line for each variant and each value of the remaining axes: dashes tell packings apart, symbols sizes.
    """
    across = next(axis for axis in ("context", "size", "packing") if axis in gaps.axes)
    figure = go.Figure()
    figure.add_hline(y=0, line={"color": NEUTRAL, "width": 1})
    colours = {label: LINE_COLOURS[i % len(LINE_COLOURS)] for i, label in enumerate(gaps.labels)}
    for label, colour in colours.items():
        for members in _lines(gaps, across):
            points = [(_place(member, gap, across), gap) for member in members if (gap := _drawn(gaps, member, label))]
            if points:
                rest = {axis: value for axis, value in members[0].values.items() if axis != across}
                figure.add_trace(_line(label, rest, points, _look(gaps, rest, colour)))
    _lay_out(figure, across)
    figure.update_yaxes(title=f"perplexity over {plain(gaps.baseline)}’s, %")
    return styled(figure)


def percent_gap_text(gap: PerplexityGap) -> str:
    """`+3.12 % [+2.40, +3.85]`, the interval where there is one."""
    shown = _signed(gap.percent) + " %"
    return shown + (f" [{_signed(gap.interval[0])}, {_signed(gap.interval[1])}]" if gap.interval else "")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _swept(gaps: Gaps) -> bool:
    return any(gap.point for member in gaps.members for gap in member.variants)


def _member_rows(gaps: Gaps, member: MemberGaps) -> list[list[str]]:
    rows = []
    for gap in member.variants:
        row = [*place_texts(member), gap.label, f"{gap.parameters:,}"]
        row += [bits_text(gap.bits_per_byte), _difference_text(gap)]
        row += [f"{gap.perplexity:.3f}" if gap.perplexity_gap is None else percent_gap_text(gap.perplexity_gap)]
        row += [f"{gap.cache_bytes_per_token:,.0f}"]
        rows.append(row + ([point_text(gap.point)] if _swept(gaps) else []))
    return rows


def _difference_text(gap: Gap) -> str:
    found = gap.difference
    if found is None:
        return "baseline"
    shown = signed_text(found.difference)
    return shown + (f" [{', '.join(map(signed_text, found.interval))}]" if found.interval else "")


def _lines(gaps: Gaps, across: str) -> Iterable[list[MemberGaps]]:
    """Members that differ in one axis alone, in its order."""
    found: dict[tuple[object, ...], list[MemberGaps]] = {}
    for member in gaps.members:
        found.setdefault(tuple(v for axis, v in member.values.items() if axis != across), []).append(member)
    return found.values()


def _drawn(gaps: Gaps, member: MemberGaps, label: str) -> Gap | None:
    gap = member.gap(label)
    return gap if gap and gap.perplexity_gap and member.baseline == gaps.baseline else None


def _place(member: MemberGaps, gap: Gap, across: str) -> int | str:
    return gap.parameters if across == "size" else member.values[across]


def _look(gaps: Gaps, rest: dict[str, int | str], colour: str) -> dict[str, str]:
    dash = gaps.axes["packing"].index(rest["packing"]) if "packing" in rest else 0
    symbol = gaps.axes["size"].index(rest["size"]) if "size" in rest else 0
    return {"color": colour, "dash": DASHES[dash % len(DASHES)], "symbol": SYMBOLS[symbol % len(SYMBOLS)]}


def _line(
    label: str, rest: dict[str, int | str], points: list[tuple[int | str, Gap]], look: dict[str, str]
) -> go.Scatter:
    found = [gap.perplexity_gap for _, gap in points if gap.perplexity_gap]
    bounds = [gap.interval or (gap.percent,) * 2 for gap in found]
    above = [high - gap.percent for gap, (_, high) in zip(found, bounds, strict=True)]
    below = [gap.percent - low for gap, (low, _) in zip(found, bounds, strict=True)]
    name = plain(", ".join([label, *map(str, rest.values())]))
    return go.Scatter(
        x=[place for place, _ in points],
        y=[gap.percent for gap in found],
        error_y=error_bars(above, below) | {"color": look["color"]},
        mode="lines+markers",
        line={"color": look["color"], "dash": look["dash"], "width": 1.8},
        marker={"color": look["color"], "symbol": look["symbol"], "size": 9},
        name=name,
        hovertext=[f"{name}: {percent_gap_text(gap)}" for gap in found],
        hoverinfo="text",
    )


def _lay_out(figure: go.Figure, across: str) -> None:
    if across == "packing":
        figure.update_xaxes(title="packing", type="category")
        return
    ticks: list[int] = []
    for place in sorted({place for trace in figure.data for place in trace.x}):
        if not ticks or place > TICK_RATIO * ticks[-1]:
            ticks.append(place)
    title = "context, tokens (log scale)" if across == "context" else "parameters (log scale)"
    figure.update_xaxes(title=title, type="log", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks])


def lead(gaps: Gaps) -> str:
    """What the page is about, in a sentence that begins with how many members were trained too little, if any."""
    others = [label for label in gaps.labels if label != gaps.baseline]
    along = list_text(list(gaps.axes))
    what = list_text(others) if others else "No variant"
    text = f"hat {what} lose{'s' if len(others) == 1 else ''} to {gaps.baseline} along {along}"
    untrained = sum(bool(member.untrained) for member in gaps.members)
    if not untrained:
        return f"W{text}"
    return f"Trained too little to be compared, in {untrained} of {len(gaps.members)} members: w{text}"
