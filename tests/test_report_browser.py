"""The page and its image in a real browser (`make test-all`): it draws, stays silent, and fits a phone."""

import re
import shutil
import subprocess

import pytest

from synthetic_records import synthetic_record, synthetic_results
from test_report_gaps import family
from test_report_sweep import swept
from twofold.report.family import render_family
from twofold.report.frontier import frontier_figure
from twofold.report.look import write_image
from twofold.report.page import render

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SWITCHES = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--hide-scrollbars", "--enable-logging=stderr"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=4000", "--window-size=800,900"),
]
PHONE = 390  # CSS pixels; browsers refuse windows as narrow as this, so a frame of that width stands in
FRAME = f"""<iframe src="report.html" style="width: {PHONE}px; height: 900px; border: 0"></iframe>
<script>addEventListener("message", (event) => {{ document.body.dataset.measured = event.data; }});</script>"""
MEASURE = """<script>setTimeout(() => {
  const drawings = document.querySelectorAll("svg.main-svg").length;
  parent.postMessage(`${document.documentElement.scrollWidth} ${drawings}`, "*");
}, 1500)</script>"""

AXES = {"context": [64, 128, 256], "packing": ["packed", "padded"]}

pytestmark = pytest.mark.system


def opened(page, folder):
    """The page's final DOM and what the browser's console said."""
    assert BROWSER, "install Chromium (Debian: apt-get install chromium) or Chrome for these checks"
    switches = [*SWITCHES, f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([BROWSER, *switches, page.as_uri()], capture_output=True, text=True, timeout=90, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("text", ["", "<script>console.error(1)</script><b>" + "long" * 40])
def test_page_draws_its_figures_silently_and_is_no_wider_than_a_phone(tmp_path, text):
    variants = ("QKV", 2.0, 512), ("K=V", 2.1, 256), ("K=V GQA-2", 2.2, 128)
    records = [synthetic_record(name, bits, bytes_per_token=size, text=text) for name, bits, size in variants]
    (tmp_path / "report.html").write_text(render(synthetic_results(records, text=text)) + MEASURE)
    (tmp_path / "frame.html").write_text(FRAME)
    document, console = opened(tmp_path / "frame.html", tmp_path)
    assert console == []
    width, drawings = re.search(r'data-measured="(\d+) (\d+)"', document).groups()
    assert int(width) == PHONE
    assert int(drawings) >= 4


@pytest.mark.parametrize("text", ["", "<script>console.error(1)</script><b>" + "long" * 40])
def test_a_sweeps_and_a_familys_page_do_so_too(tmp_path, text):
    pages = {"sweep": (render(swept(text=text)), 5), "family": (render_family(family(AXES, text=text)), 1)}
    for name, (page, figures) in pages.items():
        (tmp_path / "report.html").write_text(page + MEASURE)
        (tmp_path / "frame.html").write_text(FRAME)
        document, console = opened(tmp_path / "frame.html", tmp_path)
        assert console == [], name
        width, drawings = re.search(r'data-measured="(\d+) (\d+)"', document).groups()
        assert int(width) == PHONE, name
        assert int(drawings) >= figures, name


def test_a_silent_console_would_be_heard(tmp_path):
    (tmp_path / "loud.html").write_text("<script>console.error('heard')</script>")
    assert len(opened(tmp_path / "loud.html", tmp_path)[1]) == 1


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_frontier_is_drawn_as_an_image(tmp_path, kind):
    records = [synthetic_record("QKV", 2.0, bytes_per_token=512), synthetic_record("K=V", 2.1, bytes_per_token=256)]
    path = tmp_path / f"frontier.{kind}"
    write_image(frontier_figure(synthetic_results(records)), path)
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if kind == "png" else b"<svg" in start
