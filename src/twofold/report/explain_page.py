"""What `twofold explain` measured as one HTML file that needs nothing else."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from twofold.explain.record import Cost, Explanation
from twofold.report.explain_families import SECTIONS
from twofold.report.explain_figures import depth_figure, families, heads_figure, list_names, spectra_figure
from twofold.report.explain_sharing import FORETOLD, correlations, sharing_figure
from twofold.report.explain_words import is_baseline, line_name, words_of
from twofold.report.formats import bytes_text, count_text
from twofold.report.page import figure_json, page_template, script_json
from twofold.report.tables import facts
from twofold.study.record import write_atomically

PAGE_FILE = "explain.html"
HEIGHT = 330
FEW_LAYERS = 12
LABELS = "AB"
THOUSANDTHS = 1000
AS_BESIDE = "It is read as the one before."


def render_explanations(models: Sequence[Explanation]) -> str:
    """The page of one model, or of two side by side. Everything that comes from the records is escaped."""
    labels = _labels(models)
    return page_template("explain.html.j2").render(
        models=list(zip(labels, models, strict=True)),
        lead=" ".join(_lead(label, one) for label, one in zip(labels, models, strict=True)),
        notes=list(dict.fromkeys(note for one in models for note in one.notes)),
        tiles=_tiles(models[0]) if len(models) == 1 else [],
        sections=[_section(section, title, models, labels) for section, title in SECTIONS.items()],
        texts=[_reading(number, label, one) for number, (label, one) in enumerate(zip(labels, models, strict=True), 1)],
        costs=[(label, _cost_rows(one.cost), one.cost) for label, one in zip(labels, models, strict=True) if one.cost],
        numbers=[(label, _every_number(one)) for label, one in zip(labels, models, strict=True)],
        environment=facts([one.environment for one in models]),
        architectures=facts([{"variant": one.variant or "–", **one.architecture} for one in models]),
        plotly=Markup(get_plotlyjs()),  # the library's own text; it holds no closing script tag
    )


def write_explanations(models: Sequence[Explanation], directory: Path) -> Path:
    """Write `explain.html` into `directory` and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / PAGE_FILE
    write_atomically(path, render_explanations(models).encode())
    return path


def _labels(models: Sequence[Explanation]) -> list[str]:
    """A model's own name, and of two A and B before it: they may be named alike."""
    if len(models) == 1:
        return [Path(models[0].model).name or models[0].model]
    return [f"{label}, {one.variant or Path(one.model).name}" for label, one in zip(LABELS, models, strict=True)]


def _lead(label: str, one: Explanation) -> str:
    """The page's headline: how alike keys and values are, in one sentence with its baseline."""
    overlap, chance = (_mean(one, "similarity", key) for key in ("overlap_kv", "overlap_kv_random"))
    if overlap is None:
        return f"{label}: {len(one.layers)} layers."
    beside = "" if chance is None else f", random ones {chance:.2f}"
    return f"{label}: row spaces of keys and values overlap {overlap:.2f}{beside}; the same would be 1."


def _tiles(one: Explanation) -> list[tuple[str, str]]:
    """A few large numbers under the headline, as (number, what it counts)."""
    tiles = [(f"{len(one.layers)}", "layers measured")]
    for role, name in (("keys", "k"), ("values", "v")):
        rank, most = _mean(one, "rank", name), _mean(one, "rank", f"{name}_most")
        if rank is not None and most is not None:
            tiles.append((f"{rank:.0f} of {most:.0f}", f"effective rank of {role}, mean"))
    if one.cost:
        tiles.append((count_text(one.cost.parameters), "parameters"))
        if one.cost.cache_bytes_per_token:
            way, number = next(iter(one.cost.cache_bytes_per_token.items()))
            tiles.append((bytes_text(number), f"cache per token, {one.cost.dtype}, {way}"))
    return tiles


def _mean(one: Explanation, section: str, name: str) -> float | None:
    values = [value for value in one.series(section, name) if value is not None]
    return statistics.fmean(values) if values else None


def _section(section: str, title: str, models: Sequence[Explanation], labels: Sequence[str]) -> dict[str, Any]:
    """The figures of one section: over the layers, spectra, and maps by layer and head."""
    figures = []
    for number, words in enumerate(families(models, section)):
        made = depth_figure(models, labels, section, words)
        figures.append(_figure(f"{section}-{number}", words.title, made, HEIGHT, words.caption))
    maps = []
    for model, (one, label) in enumerate(zip(models, labels, strict=True)):
        beside = f" · {label}" if len(models) > 1 else ""
        for number, name in enumerate(list_names(one, section)):
            words = words_of(section, name)
            made = spectra_figure(one, section, name)
            id = f"{section}-list-{model}-{number}"
            maps.append(_figure(id, f"{words.title}{beside}", made, HEIGHT, words.short_caption))
        said_of: set[str] = set()
        for number, name in enumerate(_head_names(one, section)):
            words = words_of(section, name)
            said = line_name(section, name)
            heading = words.title if said == words.title else f"{words.title}, {said}"
            caption = f"By layer and head. {AS_BESIDE if words.title in said_of else words.short_caption}"
            said_of.add(words.title)
            tall = 90 + len(one.layers) * (16 if len(one.layers) <= FEW_LAYERS else 10)
            id = f"{section}-heads-{model}-{number}"
            maps.append(_figure(id, f"{heading}{beside}", heads_figure(one, f"{section}.{name}"), tall, caption))
    if section == "sharing":
        figures = _foretold(models, labels) + figures
    return {"id": section, "title": title, "figures": figures, "maps": [one for one in maps if one["data"]]}


def _foretold(models: Sequence[Explanation], labels: Sequence[str]) -> list[dict[str, Any]]:
    """What was foretold of sharing each layer against what it cost."""
    made = []
    for number, (one, label) in enumerate(zip(models, labels, strict=True)):
        if one.sharing:
            beside = f" · {label}" if len(models) > 1 else ""
            title = f"Foretold and measured{beside}"
            caption = f"{FORETOLD} {correlations(one.sharing)}"
            made.append(_figure(f"sharing-foretold-{number}", title, sharing_figure(one), HEIGHT, caption))
    return made


def _head_names(one: Explanation, section: str) -> list[str]:
    names = dict.fromkeys(name for layer in one.layers for name in layer.heads)
    own = [name.removeprefix(f"{section}.") for name in names if name.startswith(f"{section}.")]
    return sorted((name for name in own if not is_baseline(name)), key=lambda name: words_of(section, name).title)


def _figure(id: str, title: str, made: go.Figure, height: int, caption: str) -> dict[str, Any]:
    data = figure_json(made) if made.data else None
    return {"id": id, "title": title, "data": data, "height": height, "caption": caption}


def _reading(number: int, label: str, one: Explanation) -> dict[str, Any]:
    """What the page's script needs to show attention over the text's tokens: weights in thousandths."""
    maps = [
        {
            "layer": found.layer,
            "head": found.head,
            "rows": [[round(THOUSANDTHS * weight) for weight in row] for row in found.weights],
        }
        for found in one.maps
    ]
    content = {"pieces": one.text.pieces if one.text else (), "maps": maps}
    data = script_json(json.dumps(content, separators=(",", ":")))
    return {"id": number, "label": label, "text": one.text, "maps": len(maps), "data": data}


def _cost_rows(cost: Cost) -> list[tuple[str, str, str]]:
    """Lines of the cost table: what, the exact number, and in short."""
    rows = [("parameters", f"{cost.parameters:,}", count_text(cost.parameters))]
    rows += [(f"parameters, {part}", f"{n:,}", count_text(n)) for part, n in cost.parameters_by_part.items() if n]
    rows += [
        (f"multiply-accumulates of {cost.context:,} tokens, {part}", f"{n:,}", count_text(n))
        for part, n in cost.macs.items()
        if cost.context
    ]
    rows += [
        (f"cache bytes per token, {way}", f"{n:,.0f}", bytes_text(n)) for way, n in cost.cache_bytes_per_token.items()
    ]
    rows += [
        (f"cache bytes of {cost.context:,} tokens, {way}", f"{n:,}", bytes_text(n))
        for way, n in cost.cache_bytes.items()
        if cost.context
    ]
    rows += [(f"decode step, {name}", f"{n:,.6g}", f"{n:,.3g}") for name, n in cost.decode.items()]
    rows += [
        (f"decode step at best on {name}, ms", f"{1e3 * float(at['seconds']):.6g}", f"{at['bound']}-bound")
        for name, at in cost.devices.items()
    ]
    return rows


def _every_number(one: Explanation) -> dict[str, Any]:
    """Every single number of every layer: a column for each, in the record's words."""
    columns = [(section, name) for section in SECTIONS for name in one.names(section) if one.series(section, name)]
    rows = [(layer.layer, [_text_of(layer.number(section, name)) for section, name in columns]) for layer in one.layers]
    return {"headings": [f"{section}.{name}" for section, name in columns], "rows": rows}


def _text_of(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}".replace("-", "−")
