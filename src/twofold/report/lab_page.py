"""The lab as one HTML file that needs nothing else: models with their weights, and the scripts that run them."""

from __future__ import annotations

from pathlib import Path

from twofold.explain.lab_record import Lab
from twofold.report.page import page_template, script_json
from twofold.report.tables import facts
from twofold.study.record import write_atomically

PAGE_FILE = "lab.html"
WORDS = {2: "Two", 3: "Three", 4: "Four"}


def render_lab(lab: Lab) -> str:
    """The page. Everything that comes from the record is escaped."""
    return page_template("lab.html.j2").render(
        lab=lab,
        lead=_lead([model.label for model in lab.models]),
        environment=facts([lab.environment]),
        data=script_json(lab.model_dump_json(exclude={"command", "environment"})),
    )


def write_lab(lab: Lab, directory: Path) -> Path:
    """Write `lab.html` into `directory` and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / PAGE_FILE
    write_atomically(path, render_lab(lab).encode())
    return path


def _lead(labels: list[str]) -> str:
    if len(labels) == 1:
        return f"A small trained decoder, {labels[0]}, reads your sentence byte by byte."
    named = f"{', '.join(labels[:-1])} and {labels[-1]}"
    return f"{WORDS[len(labels)]} small trained decoders, {named}, read your sentence byte by byte."
