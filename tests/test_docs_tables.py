"""Tables in documents are what the command above them prints from committed records; nobody typed their numbers."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- twofold (\S.*?) -->\n(.*?)<!-- end -->", re.DOTALL)


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", [p for p in pages() if BLOCK.search(p.read_text())], ids=lambda p: p.stem)
def test_tables_are_made_from_committed_records(page, capsys):
    for command, table in BLOCK.findall(page.read_text()):
        made = run(capsys, *[word.replace("docs/", f"{ROOT}/docs/") for word in shlex.split(command)])
        assert table.strip() == made.out.strip(), command


def test_every_marker_has_its_end():
    for page in pages():
        text = page.read_text()
        assert text.count("<!-- twofold ") == len(BLOCK.findall(text)) == text.count("<!-- end -->"), page.name


def test_every_committed_record_is_shown_somewhere():
    shown = " ".join(command for page in pages() for command, _ in BLOCK.findall(page.read_text()))
    for record in [path for name in ("results", "gaps") for path in (ROOT / "docs/results").glob(f"*/{name}.json")]:
        assert f"docs/results/{record.parent.name} " in shown


def test_links_lead_somewhere():
    for page in pages():
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
