"""A healing as one HTML file that needs nothing else: the loss on the way, and what the cache takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from twofold.healing.record import HealRecord, TrainingRecord
from twofold.report.formats import bytes_text, count_text, percent_text, times_text
from twofold.report.heal_words import model_rows, training_rows
from twofold.report.look import BLUE, NEUTRAL, ORANGE, styled
from twofold.report.page import figure_json, page_template
from twofold.report.tables import facts
from twofold.study.record import write_atomically

PAGE_FILE = "heal.html"
COLOURS = {"teacher": NEUTRAL, "converted": "#8a63d2", "healed": BLUE, "control": ORANGE}


def render_heal(record: HealRecord) -> str:
    """The page. Everything that comes from the record is escaped."""
    return page_template("heal.html.j2").render(
        record=record,
        lead=_lead(record),
        tiles=_tiles(record),
        rows=model_rows(record),
        trainings=training_rows(record),
        figure=figure_json(heal_figure(record)),
        cache=figure_json(cache_figure(record)),
        facts=[pair for part in _made_with(record) for pair in part],
        plotly=Markup(get_plotlyjs()),  # the library's own text; it holds no closing script tag
    )


def write_heal_page(record: HealRecord, folder: Path) -> Path:
    """Write `heal.html` into the folder and return its path."""
    path = folder / PAGE_FILE
    write_atomically(path, render_heal(record).encode())
    return path


def heal_figure(record: HealRecord) -> go.Figure:
    """Perplexity on the sample of held-out text against tokens trained.

    Curves begin where training did: that of the healed model at the converted one, that of the control at the teacher.
    """
    figure = go.Figure()
    curves = {"healed": record.training} | ({"control": record.control.training} if record.control else {})
    for name, trained in curves.items():
        figure.add_trace(_curve(name, trained))
    if record.control:
        figure.add_trace(_level("teacher", record.control.training.evaluations[0].perplexity, record.training.tokens))
    figure.add_trace(_start("converted", record.training.evaluations[0].perplexity))
    figure.update_xaxes(title="tokens trained", rangemode="tozero")
    figure.update_yaxes(title="perplexity, held-out sample", type="log")
    return styled(figure)


def cache_figure(record: HealRecord) -> go.Figure:
    """Bytes of each model's cache per token, as bars."""
    rows = record.rows()
    bars = go.Bar(
        y=[name for name, _ in rows],
        x=[found.cache_bytes_per_token for _, found in rows],
        orientation="h",
        marker={"color": [COLOURS[name] for name, _ in rows]},
        hovertemplate="%{y}: %{x:,.0f} bytes per token<extra></extra>",
    )
    figure = go.Figure(bars)
    figure.update_xaxes(title="cache bytes per token", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return styled(figure)


def _curve(name: str, trained: TrainingRecord) -> go.Scatter:
    return go.Scatter(
        x=[one.tokens for one in trained.evaluations],
        y=[one.perplexity for one in trained.evaluations],
        mode="lines+markers",
        line={"color": COLOURS[name], "width": 2, "dash": "solid" if name == "healed" else "dash"},
        marker={"symbol": "circle" if name == "healed" else "diamond", "size": 7},
        name=name,
        hovertemplate=f"{name}, %{{x:,}} tokens: %{{y:.3f}}<extra></extra>",
    )


def _level(name: str, value: float, tokens: int) -> go.Scatter:
    return go.Scatter(
        x=[0, tokens],
        y=[value, value],
        mode="lines",
        line={"color": COLOURS[name], "width": 1.4, "dash": "dot"},
        name=name,
        hovertemplate=f"{name}: %{{y:.3f}}<extra></extra>",
    )


def _start(name: str, value: float) -> go.Scatter:
    return go.Scatter(
        x=[0],
        y=[value],
        mode="markers",
        marker={"color": COLOURS[name], "symbol": "square", "size": 10},
        name=name,
        hovertemplate=f"{name}: %{{y:,.3f}}<extra></extra>",
    )


def _lead(record: HealRecord) -> str:
    """The page's headline: what the cache shrank to, and what is left of the loss."""
    share = percent_text(record.healed.cache_bytes_per_token / record.before.cache_bytes_per_token)
    healed, converted = (found.validation.perplexity for found in (record.healed, record.converted))
    said = f"With {share} of the teacher’s cache, perplexity {healed:,.2f} after healing, {converted:,.2f} before it"
    if record.control is None:
        return f"{said}; the teacher’s is {record.before.validation.perplexity:,.2f}."
    return f"{said}; the control’s is {record.control.after.validation.perplexity:,.2f}."


def _tiles(record: HealRecord) -> list[tuple[str, str]]:
    """A few large numbers under the headline, as (number, what it counts)."""
    share = record.healed.cache_bytes_per_token / record.before.cache_bytes_per_token
    tiles = [
        (bytes_text(record.healed.cache_bytes_per_token), "cache per token, measured"),
        (times_text(1 / share), "smaller than the teacher’s")
        if share < 1
        else (percent_text(share), "of the teacher’s"),
        (count_text(record.training.tokens), "tokens of healing"),
        (f"{100 * record.healed.recall.accuracy:.0f} %", "recall of random sequences, healed"),
    ]
    ratio = record.ratios.get("perplexity_healed_to_control")
    return tiles if ratio is None else [(f"{ratio:.3f}", "perplexity, healed to control"), *tiles]


def _made_with(record: HealRecord) -> list[list[tuple[str, str]]]:
    stated: list[dict[str, Any]] = [record.settings, record.text.model_dump(), record.environment.model_dump()]
    return [facts([one]).common for one in stated]
