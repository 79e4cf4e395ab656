"""The report of a study of tasks says what its results say, escapes what it shows, and needs nothing but itself."""

import json
import re
import subprocess
import sys

import pytest

from command_line import run
from synthetic_records import synthetic_record, synthetic_results
from synthetic_trials import (
    MEASURES,
    RATES,
    finished_trials,
    seeded,
    synthetic_maps,
    synthetic_run,
    synthetic_task,
    synthetic_trials,
    tried,
)
from test_report_page import ATTACK, MARK, Reader
from twofold.report import look, trial_figures, trial_headline, trials
from twofold.report.trial_maps import columns_of, maps_figure
from twofold.report.trial_page import render_trials, write_trial_report
from twofold.trials.collection import collect_trials
from twofold.trials.maps import read_maps
from twofold.trials.results import UNSOLVED, read_trial_results

PAIRS = {"4 pairs": 0.997, "8 pairs": 0.971, "16 pairs": 0.613}


def reverse(qkv=(0.997, 0.995, 0.996), other=(0.90, 0.91, 0.92), label="Q=K", name="reverse", **others):
    runs = seeded("QKV", qkv, measures=MEASURES, **others) + seeded(label, other, measures=MEASURES, **others)
    swept = tried("QKV", (0.5, 0.9, 0.7), 1) + tried(label, (None, 0.8, 0.85), 2)
    return synthetic_task(runs, name=name, published={"QKV": 0.698}, sweep=swept)


def recall(name="recall", shift=0.0, text=""):
    lower = {part: score - 0.1 for part, score in PAIRS.items()}
    runs = seeded("QKV", (0.9, 0.91), parts=PAIRS, cache=512, text=text)
    runs += seeded("MQA", (0.8 - shift, 0.81), parts=lower, cache=128, text=text)
    return synthetic_task(runs, name=name, deciding_part="4 pairs")


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
    for tag, name, value in Reader(page).attributes:
        if name in ("src", "href", "srcset", "action", "poster"):
            assert (tag, value) == ("link", "data:,")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page
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


# the command line


SCORES = {"reverse": {"QKV": (0.995, 0.993), "Q=K": (0.91, 0.92)}, "copy": {"QKV": (0.4, 0.5), "Q=K": (0.6, 0.7)}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = finished_trials(tmp_path_factory.mktemp("trials") / "made", SCORES)
    write_trial_report(collect_trials(out), read_maps(out), out)
    return out


def study(capsys, *arguments):
    return run(capsys, "study", *map(str, arguments))


def test_maps_are_those_of_the_first_reported_run(folder, tmp_path):
    maps = read_maps(folder)
    assert {task: list(of_task) for task, of_task in maps.items()} == {task: ["QKV", "Q=K"] for task in SCORES}
    assert maps["copy"]["QKV"] == synthetic_maps(["QKV"])["reverse"]["QKV"]
    assert read_maps(tmp_path) == {}


def test_report_writes_the_page_and_prints_its_path(capsys, folder):
    (folder / "report.html").unlink()
    outcome = study(capsys, "report", folder)
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == f"{folder}/report.html"
    page = (folder / "report.html").read_text()
    assert page.endswith("</html>\n")
    assert 'id="figure-maps-2-2"' in page
    assert page == render_trials(read_trial_results(folder / "results.json"), read_maps(folder))


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_tables_in_a_terminal_are_whole(capsys, monkeypatch, folder, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = study(capsys, "show", folder).out
    for row in ("0.9940 ± .0014", "0.613 ± .000", "published"):
        assert row in shown
    assert "…" not in shown
    tables = [line for line in shown.splitlines() if "±" in line and "are means" not in line]
    assert max(map(len, tables)) <= columns
    interval = re.search(r"\[[+−][\d.]+,[+−][\d.]+\]", shown)
    assert interval, "an interval stays in one piece"


def test_show_knows_results_by_what_they_hold_and_shows_one_task(capsys, folder):
    by_file = study(capsys, "show", folder / "results.json", "--task", "copy", "--markdown")
    assert by_file == study(capsys, "show", folder, "--task", "copy", "--markdown")
    assert by_file.out.startswith("### copy: accuracy on 5,003 test answers")
    assert "\n| variant | score | to baseline | published | parameters |\n" in by_file.out
    assert "\n- The baseline does not solve it: this table does not count.\n" in by_file.out
    assert "reverse" not in by_file.out
    told = json.loads(study(capsys, "show", folder, "--json").out)
    assert [task["name"] for task in told["tasks"]] == ["reverse", "copy"]
    one = json.loads(study(capsys, "show", folder, "--json", "--task", "copy").out)
    assert one == told | {"tasks": told["tasks"][1:]}


def test_show_of_a_sweep(capsys, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(synthetic_trials(reverse(), recall()).model_dump_json())
    assert "| Q=K | diverged | 0.8000 | 0.8500 ✓ |" in study(capsys, "show", path, "--sweep", "--markdown").out
    assert len(json.loads(study(capsys, "show", path, "--sweep", "--json").out)) == 2 * len(RATES)
    assert "0.9000 ✓" in study(capsys, "show", path, "--sweep").out
    assert "no sweep" in study(capsys, "show", path, "--sweep", "--task", "recall").err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to-loss", "2"], "--to-loss is of studies of text"),
        (["--scores"], "--scores is of studies of text"),
        (["--image", "x.svg", "--figure", "frontier"], "--figure frontier is of studies of text"),
        (["--task", "nope"], "its tasks are reverse, copy"),
        (["--image", "x.svg", "--figure", "looks"], "name it with --task"),
        (["--image", "x.svg", "--figure", "sweep", "--task", "copy"], "copy: no sweep"),
        (["--image", "x.svg", "--figure", "parts"], "no parts of the test set"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(capsys, folder, options, said):
    outcome = study(capsys, "show", folder, *options)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert said in outcome.err


def test_every_figure_can_be_written(capsys, monkeypatch, folder, tmp_path):
    drawn = []
    monkeypatch.setattr(look, "write_image", lambda figure, path: drawn.append((len(figure.data), path.name)))
    for name in ("scores", "looks", "curves", "maps"):
        assert study(capsys, "show", folder, "--image", f"{name}.svg", "--figure", name, "--task", "copy").code == 0
    assert drawn == [(2, "scores.svg"), (4, "looks.svg"), (2, "curves.svg"), (8, "maps.svg")]
    alone = tmp_path / "results.json"
    alone.write_bytes((folder / "results.json").read_bytes())
    outcome = study(capsys, "show", alone, "--image", "x.svg", "--figure", "maps", "--task", "copy")
    assert (outcome.code, "no attention maps" in outcome.err) == (2, True)


def test_options_of_tasks_are_refused_for_studies_of_text(capsys, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(synthetic_results([synthetic_record("QKV", 2.0)]).model_dump_json())
    for options in (["--task", "reverse"], ["--image", "x.svg", "--figure", "maps"]):
        outcome = study(capsys, "show", path, *options)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "is of studies of tasks" in outcome.err


def test_advice_is_not_of_tasks(capsys, folder):
    outcome = study(capsys, "advise", folder, "--cache", "1KiB")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "study of tasks" in outcome.err


def test_list_shows_studies_of_tasks_beside_those_of_text(capsys, monkeypatch):
    text = (
        "{name: made, description: two tasks, tasks: [reverse, {task: copy, steps: 700}], variants: [QKV], steps: 60}"
    )
    monkeypatch.setattr("twofold.trials.load.yaml_texts", lambda package: {"made": text})
    listed = {each["name"]: each for each in json.loads(study(capsys, "list", "--json").out)}
    assert listed["made"]["tasks"] == {"reverse": 60, "copy": 700}
    assert "tokens" in listed["demo"]
    shown = study(capsys, "list").out
    assert re.search(r"made +2 +60 to 700 steps +two tasks", shown)
    assert re.search(r"demo +8 +700,000 tokens", shown)


def test_report_never_imports_torch():
    code = "import sys, twofold.report.trial_page, twofold.cli.trial_show; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_report_is_written_whole(tmp_path):
    path = write_trial_report(synthetic_trials(recall()), {}, tmp_path / "new")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
