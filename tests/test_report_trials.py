"""The report of a study of tasks says what its results say, escapes what it shows, and needs nothing but itself."""

import json
import re
import subprocess
import sys

import pytest

from pages import ATTACK, MARK, Reader, check_loads_nothing
from synthetic_trials import (
    PAIRS,
    RATES,
    recall,
    reverse,
    seeded,
    synthetic_maps,
    synthetic_run,
    synthetic_task,
    synthetic_trials,
)
from test_report_browser import FRAME, MEASURE, PHONE, opened
from twofold.report import trial_figures, trial_headline, trials
from twofold.report.trial_maps import columns_of, maps_figure
from twofold.report.trial_page import render_trials, write_trial_report
from twofold.trials.results import UNSOLVED


@pytest.fixture(scope="module")
def page():
    return render_trials(synthetic_trials(reverse(), recall()), synthetic_maps(["QKV", "Q=K"]))


@pytest.fixture(scope="module")
def attacked():
    label, name = "Q=K" + ATTACK, "reverse" + ATTACK
    one = reverse(label=label, name=name, text=ATTACK)
    two = recall("recall" + ATTACK, text=ATTACK)
    return render_trials(synthetic_trials(one, two, text=ATTACK), synthetic_maps(["QKV", label], name))


def texts(page):
    return " ".join("".join(Reader(page).texts).split())


def cells(table, heading):
    column = table.headings.index(heading)
    return [row[column] for row in table.rows]


# the page


def test_hostile_texts_add_no_element_and_no_attribute(page, attacked):
    honest, hostile = Reader(page), Reader(attacked)
    assert hostile.tags == honest.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in honest.attributes]
    assert sum(MARK in text for text in hostile.texts) > 10


def test_hostile_texts_reach_no_code_and_no_markup_of_figures(attacked):
    scripts = Reader(attacked).scripts
    assert not any(ATTACK in text for kind, text in scripts if kind == "code")
    data = [text for kind, text in scripts if kind == "application/json"]
    shown = [text for text in data if MARK in text]
    assert len(shown) == 5  # scores, looks, losses, sweep, and the maps of one variant
    for text in shown:
        assert "<" not in text
        assert "<script>" not in json.dumps(json.loads(text))


def test_page_loads_nothing_and_is_made_for_phones_and_both_colour_schemes(page):
    check_loads_nothing(page)
    assert "prefers-color-scheme: dark" in page
    assert page.count("<table") == page.count('class="scroll"') > 5


def test_every_figure_has_its_place_its_data_and_its_caption(page):
    ids = [value for _, name, value in Reader(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    figures = {value.removeprefix("figure-") for value in ids if value.startswith("figure-")}
    assert figures == {
        *("scores-1", "looks-1", "curves-1", "sweep-1", "maps-1-1", "maps-1-2"),
        *("scores-2", "looks-2", "curves-2", "parts-2"),
    }
    for kind in ("data", "caption"):
        assert {value.removeprefix(f"{kind}-") for value in ids if value.startswith(f"{kind}-")} == figures


def test_page_shows_numbers_measures_command_and_fingerprint(page):
    text = texts(page)
    for part in (
        "0.9960 ± .0010",
        "−0.0860",
        "0.698",
        "72,526",
        "with neighbours",
        "0.733",
        "f" * 64,
        "made up",
        "1,009",
    ):
        assert part in text.replace("\u00a0", " ") or part.replace(" ± ", "± ") in text, part
    assert "twofold study run made-up.yaml" in text
    assert all(meaning in text for _, meaning in trials.MEASURES.values())


def test_banner_stands_over_tables_that_do_not_count_alone():
    solved, not_solved = reverse(), reverse(qkv=(0.5, 0.6, 0.7), name="sort")
    assert 'class="banner"' not in render_trials(synthetic_trials(solved), {})
    page = render_trials(synthetic_trials(solved, not_solved), {})
    assert page.count('class="banner"') == 1
    assert page.index("<h2>sort") < page.index('class="banner"')
    assert UNSOLVED in texts(page)


def test_page_of_little_has_no_empty_figures():
    bare = synthetic_run("QKV", 0.7).model_copy(update={"curve": (), "looks": ()})
    reader = Reader(render_trials(synthetic_trials(synthetic_task([bare], threshold=None)), {}))
    assert [v for _, name, v in reader.attributes if name == "id" and v.startswith("figure-")] == ["figure-scores-1"]
    untested = bare.model_copy(update={"test": None})
    page = render_trials(synthetic_trials(synthetic_task([untested])), {})
    assert "No run has read the test set yet." in page


def test_other_examples_within_a_task_are_told():
    runs = seeded("QKV", (0.9, 0.8))
    other = runs[1].model_copy(update={"configuration": {"data": "e" * 64}})
    assert "did not all have the same examples" in render_trials(synthetic_trials(synthetic_task([runs[0], other])), {})
    assert "did not all have the same examples" not in render_trials(synthetic_trials(synthetic_task(runs)), {})


# headline


def test_headline_names_differences_beyond_their_interval_on_tasks_that_count():
    close = reverse(other=(0.999, 0.993, 0.996), name="swap")
    unsolved = reverse(qkv=(0.2, 0.3, 0.4), name="sort")
    lead = trial_headline.lead(synthetic_trials(reverse(), close, unsolved))
    assert "below it Q=K on reverse" in lead
    assert "swap" not in lead
    assert "sort" not in lead
    notes = " ".join(trial_headline.notes(synthetic_trials(reverse(), close, unsolved)))
    assert "solves reverse and swap" in notes
    assert "does not solve sort" in notes
    assert "QKV reaches 0.3000" in notes
    assert "Q=K −0.0860" in notes


def test_headline_without_a_table_that_counts_without_intervals_and_without_differences():
    assert "No table counts" in trial_headline.lead(synthetic_trials(reverse(qkv=(0.2, 0.3, 0.4))))
    assert "One seed each" in trial_headline.lead(synthetic_trials(reverse((0.99,), (0.5,))))
    same = trial_headline.lead(synthetic_trials(reverse(other=(0.997, 0.995, 0.996))))
    assert same.startswith("No variant differs")
    many = [reverse(other=(1.0, 0.999, 1.0), qkv=(0.991, 0.99, 0.991), name=f"t{n}") for n in range(5)]
    assert "5 of 5 differences" in (lead := trial_headline.lead(synthetic_trials(*many)))
    assert "5 above" in lead


# tables


def test_tables_hold_the_results_and_no_empty_column():
    task = reverse()
    main = trials.main_table(task)
    assert main.headings == ["variant", "score", "to baseline", "published", "parameters"]
    assert cells(main, "score") == [("0.9960", "± .0010", ""), ("0.9100", "± .0100", "")]
    found = cells(main, "to baseline")[1]
    assert (found.text, found.kind) == ("−0.0860", "worse")
    low, high = (float(part.replace("−", "-")) for part in found.detail.strip("[]").split(", "))
    assert low < -0.086 < high < 0
    assert cells(main, "published") == [("0.698", "", ""), ("–", "", "")]
    assert "published" not in trials.main_table(recall()).headings
    assert [cell.text for cell in cells(trials.main_table(recall()), "cache bytes/token")] == ["512", "128"]
    assert [cell.text for cell in cells(trials.parts_table(recall()), "16 pairs")] == ["0.6130", "0.5130"]
    assert cells(trials.attention_table(task), "with neighbours")[0] == ("0.733", "± .000", "")
    assert trials.parts_table(task).rows == []
    assert trials.attention_table(recall()).rows == []


def test_sweep_marks_what_was_chosen_and_what_stands_at_its_edge():
    table = trials.sweep_table(reverse())
    assert table.headings == ["variant", *(f"learning_rate {rate:g}" for rate in RATES)]
    assert [cell.text for cell in table.rows[1]] == ["Q=K", "diverged", "0.8000", "0.8500 ✓"]
    assert trials.edge_notes(reverse()) == [
        "At the edge of the sweep: Q=K with learning_rate 0.01; a wider one may do better."
    ]


# figures


def test_scores_figure_holds_means_intervals_published_scores_and_the_score_asked():
    task = reverse(qkv=(0.9, 0.99, 1.0))
    own, published = trial_figures.scores_figure(task).data
    assert list(own.y) == ["Q=K", "QKV"]
    for place, one in enumerate(task.summary[::-1]):
        assert own.x[place] == one.score.mean
        high = own.x[place] + own.error_x.array[place]
        low = own.x[place] - own.error_x.arrayminus[place]
        assert (low, high) == pytest.approx((one.interval[0], min(1.0, one.interval[1])))
    assert task.summary[0].interval[1] > 1  # so that the bar is seen to end where scores do
    assert (list(published.x), list(published.y)) == ([0.698], ["QKV"])
    line = trial_figures.scores_figure(task).layout.shapes[0]
    assert line.x0 == line.x1 == 0.99


def test_parts_figure_has_a_panel_for_each_task_and_the_numbers_of_pairs():
    figure = trial_figures.parts_figure([recall("narrow"), reverse(), recall("<b>wide", shift=0.2)])
    assert [each.text for each in figure.layout.annotations] == ["narrow", "&lt;b&gt;wide"]
    assert [(each.name, each.xaxis) for each in figure.data] == [
        ("QKV", "x"),
        ("MQA", "x"),
        ("QKV", "x2"),
        ("MQA", "x2"),
    ]
    assert all(list(each.x) == [4, 8, 16] for each in figure.data)
    assert list(figure.data[0].y) == pytest.approx(list(PAIRS.values()))
    assert [each.showlegend for each in figure.data] == [True, True, False, False]
    assert figure.layout.xaxis2.type == "log"


def test_parts_that_are_no_numbers_are_categories():
    task = synthetic_task(seeded("QKV", (0.9, 0.8), parts={"active": 0.9, "passive": 0.7}))
    figure = trial_figures.parts_figure([task])
    assert list(figure.data[0].x) == ["active", "passive"]
    assert figure.layout.xaxis.type == "category"


def test_lines_over_training_end_at_the_last_step_with_what_was_recorded():
    task = reverse()
    looks, curves = trial_figures.looks_figure(task), trial_figures.curves_figure(task)
    assert len(looks.data) == len(task.runs)
    assert (list(looks.data[4].x), list(looks.data[4].y)) == (
        [look.step for look in task.runs[4].looks],
        [look.score for look in task.runs[4].looks],
    )
    assert [each.name for each in curves.data] == ["QKV", "Q=K"]
    assert list(curves.data[1].x) == list(range(1, 61))
    assert list(curves.data[1].y) == [point.loss for point in task.runs[3].curve]
    assert curves.data[1].line.color == looks.data[4].line.color


def test_sweep_figure_leaves_out_what_diverged_and_stars_what_was_chosen():
    first, second = trial_figures.sweep_figure(reverse()).data
    assert (list(first.x), list(first.y)) == (list(RATES), [0.5, 0.9, 0.7])
    assert (list(second.x), list(second.marker.symbol)) == ([0.003, 0.01], ["circle", "star"])


@pytest.mark.parametrize(("layers", "heads", "columns"), [(2, 2, 4), (3, 3, 3), (1, 8, 4), (1, 1, 1)])
def test_maps_figure_draws_each_head_once_with_its_weights(layers, heads, columns):
    maps = synthetic_maps(["QKV", "Q=K"], layers=layers, heads=heads)["reverse"]
    figure = maps_figure(dict(maps))
    assert columns_of(maps["QKV"]) == columns
    assert len({each.xaxis for each in figure.data}) == len(figure.data) == 2 * layers * heads
    assert [[list(row) for row in each.z] for each in figure.data] == [
        [pytest.approx(list(row), abs=5e-4) for row in one.weights] for of_label in maps.values() for one in of_label
    ]
    assert {(each.zmin, each.zmax) for each in figure.data} == {(0, 1)}


def test_report_never_imports_torch():
    code = "import sys, twofold.report.trial_page, twofold.cli.trial_show; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_report_is_written_whole(tmp_path):
    path = write_trial_report(synthetic_trials(recall()), {}, tmp_path / "new")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


@pytest.mark.system
@pytest.mark.parametrize("text", ["", "<script>console.error(1)</script><b>" + "long" * 40])
def test_page_draws_its_figures_silently_and_is_no_wider_than_a_phone(tmp_path, text):
    label, name = "Q=K" + text, "reverse" + text
    results = synthetic_trials(reverse(label=label, name=name, text=text), recall(), recall("r2" + text), text=text)
    (tmp_path / "report.html").write_text(render_trials(results, synthetic_maps(["QKV", label], name)) + MEASURE)
    (tmp_path / "frame.html").write_text(FRAME)
    document, console = opened(tmp_path / "frame.html", tmp_path)
    assert console == []
    width, drawings = re.search(r'data-measured="(\d+) (\d+)"', document).groups()
    assert int(width) == PHONE
    assert int(drawings) >= 15
