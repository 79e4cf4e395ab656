"""The page escapes what it shows, needs nothing but itself, and says what the results say."""

import json
import re
import subprocess
import sys

import pytest

from pages import ATTACK, MARK, Reader, check_loads_nothing
from synthetic_records import synthetic_record, synthetic_results
from twofold.report.page import render, write_report
from twofold.study.record import Sample


def three_variants(text=""):
    return [
        synthetic_record("QKV", 2.0, text=text),
        synthetic_record("K=V", [2.02, 1.99] * 5 + [2.01], bytes_per_token=256, text=text),
        synthetic_record("Q=K", 2.3, text=text),
    ]


@pytest.fixture(scope="module")
def page():
    return render(synthetic_results(three_variants()))


@pytest.fixture(scope="module")
def attacked():
    return render(synthetic_results(three_variants(ATTACK), text=ATTACK))


def test_hostile_texts_add_no_element_and_no_attribute(page, attacked):
    honest, hostile = Reader(page), Reader(attacked)
    assert hostile.tags == honest.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in honest.attributes]
    assert any(MARK in text for text in hostile.texts)


def test_hostile_texts_reach_no_code_and_come_back_whole_in_figure_data(attacked):
    scripts = Reader(attacked).scripts
    code = [text for kind, text in scripts if kind == "code"]
    data = [json.loads(text) for kind, text in scripts if kind == "application/json"]
    assert len(data) == 4
    assert not any(ATTACK in text for text in code)
    names = {trace.get("name", "") for trace in data[2]["data"]}
    assert any("&lt;script&gt;" in name for name in names)
    assert not any("<script>" in name for name in names)


def test_page_loads_nothing(page):
    check_loads_nothing(page)


def test_page_is_made_for_phones_and_both_colour_schemes(page):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "prefers-color-scheme: dark" in page
    for table in re.finditer(r"<table", page):
        assert 'class="scroll"' in page[: table.start()].rsplit("<div", 1)[1]


def test_padding_that_is_scored_is_told():
    record = synthetic_record("QKV", 2.0)
    padded = record.model_copy(update={"configuration": {"data": {"packing": "padded"}}})
    assert "and no padding" in render(synthetic_results([record]))
    page = render(synthetic_results([padded]))
    assert "the padding that fills windows up" in page
    assert "and no padding" not in page


def test_plotly_is_inline_once(page):
    assert len(re.findall(r"plotly\.js v[\d.]+\n", page)) == 1


def test_page_shows_command_hash_samples_versions_and_verdicts(page):
    results = synthetic_results(three_variants())
    text = "".join(Reader(page).texts)
    run = results.runs[0]
    expected = [results.command, results.corpus.sha256, run.sample.prompt, run.sample.text, run.environment.torch]
    for part in [*expected, *(entry.verdict for entry in results.summary), "1,000,003", "3.6100"]:
        assert part in text


def test_leading_and_inner_white_space_of_samples_is_kept():
    sample = Sample(prompt="    if x:\n", text="\n\n        y  =  1\n")
    page = render(synthetic_results([synthetic_record("QKV", 2.0, sample=sample)]))
    assert '<span class="prompt">    if x:\n</span><mark>\n\n        y  =  1\n</mark>' in page


def test_one_variant_and_runs_without_curves_make_a_page_without_empty_figures():
    record = synthetic_record("QKV", 2.0).model_copy(update={"curve": ()})
    reader = Reader(render(synthetic_results([record])))
    figures = [value for _, name, value in reader.attributes if name == "id" and value.startswith("figure-")]
    assert figures == ["figure-frontier"]


def test_report_is_written_whole(tmp_path):
    path = write_report(synthetic_results(three_variants()), tmp_path / "new")
    assert path.read_text().endswith("</html>\n")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_report_never_imports_torch():
    code = "import sys, twofold.report.page, twofold.study.results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
