"""`twofold study` with studies of tasks: report, show, list; what they print, write and refuse."""

import json
import re

import pytest

from command_line import run
from synthetic_records import synthetic_record, synthetic_results
from synthetic_trials import RATES, finished_trials, recall, reverse, synthetic_maps, synthetic_trials
from twofold.report import look
from twofold.report.trial_page import render_trials, write_trial_report
from twofold.trials.collection import collect_trials
from twofold.trials.maps import read_maps
from twofold.trials.results import read_trial_results

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
    assert "\n| variant | score | to baseline | steps to 0.99 | published | parameters |\n" in by_file.out
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
    monkeypatch.setattr(look, "write_image", lambda figure, path, height: drawn.append((len(figure.data), path.name)))
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
