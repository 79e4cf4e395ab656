"""The page at the top of a family: its gaps, and the way to each member's own report."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from twofold.report.gaps import LEFT, gap_headings, gap_remarks, gap_rows, gaps_figure, lead
from twofold.report.page import REPORT_FILE, figure_json, page_template
from twofold.report.scores import score_table
from twofold.study.axes import values_text
from twofold.study.gaps import Gaps, MemberGaps
from twofold.study.record import write_atomically
from twofold.version import __version__


def render_family(gaps: Gaps) -> str:
    """The family as one HTML page, whose links are to the members' pages below it. Everything shown is escaped."""
    figure = gaps_figure(gaps)
    return page_template("family.html.j2").render(
        gaps=gaps,
        lead=lead(gaps),
        remarks=gap_remarks(gaps),
        headings=gap_headings(gaps),
        left=LEFT,
        rows=gap_rows(gaps),
        scores=score_table(gaps),
        members=[{"text": values_text(member.values), "folder": _link(member)} for member in gaps.members],
        figure=figure_json(figure) if figure.data else None,
        version=__version__,
        plotly=Markup(get_plotlyjs()),  # the library's own text; it holds no closing script tag
    )


def write_family_report(gaps: Gaps, directory: Path) -> Path:
    """Write `report.html` into the family's folder and return its path."""
    path = directory / REPORT_FILE
    write_atomically(path, render_family(gaps).encode())
    return path


def _link(member: MemberGaps) -> str:
    """Where a member's page stands, relative to the family's; empty where it has none."""
    return quote(f"{member.folder}/{REPORT_FILE}") if member.variants else ""
