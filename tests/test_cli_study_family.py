"""`twofold study` with a sweep, and with axes: what is planned, made, shown and refused."""

import json

import pytest
import yaml

from command_line import run
from synthetic_records import invent_runs
from tiny_study import content, files
from twofold.report import look

RATES = [0.001, 0.003, 0.01]
SWEEP = {"sweep": {"training.learning_rate": RATES}, "seeds": [0, 1]}
AXES = {"axes": {"context": [19, 37], "size": [{"layers": 1}, {"layers": 2}]}}


@pytest.fixture(autouse=True)
def _invented(monkeypatch):
    invent_runs(
        monkeypatch,
        lambda run, study: 2 + len(run.label) / study.data.context + abs(study.training.learning_rate - 0.003),
        watched=False,
    )


def study(capsys, *arguments):
    return run(capsys, "study", *map(str, arguments))


def refused(capsys, *arguments):
    outcome = study(capsys, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix(f"twofold study {arguments[0]}: ").rstrip("\n")


def written(texts, folder, **changes):
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content(texts, **changes)))
    return path


@pytest.fixture
def swept(capsys, texts, tmp_path):
    """The folder of a finished study with a sweep."""
    made = study(capsys, "run", written(texts, tmp_path, **SWEEP), "--out", tmp_path / "out")
    assert made.code == 0
    return tmp_path / "out"


@pytest.fixture
def family(capsys, texts, tmp_path):
    """The folder of a finished family."""
    made = study(capsys, "run", written(texts, tmp_path, **AXES), "--out", tmp_path / "out")
    assert made.code == 0
    return tmp_path / "out"


def test_a_dry_run_shows_the_points_and_what_they_leave_open(capsys, texts, tmp_path):
    file = written(texts, tmp_path, **SWEEP)
    rows = json.loads(study(capsys, "run", file, "--out", tmp_path / "new", "--dry-run", "--json").out)
    assert [(row["label"], row["point"]) for row in rows] == [
        (label, {"training.learning_rate": rate}) for rate in RATES for label in ("QKV", "K=V MQA")
    ]
    shown = study(capsys, "run", file, "--out", tmp_path / "new", "--dry-run").out
    assert "8 runs (2 variants × (3 points + 1 seeds))" in shown
    assert "and 2 runs with further seeds, each at its variant's best point" in shown
    assert shown.count("learning_rate 0.003") == 2
    assert not (tmp_path / "new").exists()


def test_a_dry_run_shows_the_steps_and_sizes_of_every_point(capsys, texts, tmp_path):
    file = written(texts, tmp_path, sweep={"training.batch": [3, 11], "model.mlp": [31, 37]})
    rows = json.loads(study(capsys, "run", file, "--out", tmp_path / "new", "--dry-run", "--json").out)
    assert [(row["steps"], row["mlp"]) for row in rows[::2]] == [(11, 31), (3, 31), (11, 37), (3, 37)]
    shown = study(capsys, "run", file, "--out", tmp_path / "new", "--dry-run").out
    assert "3 or 11 steps each" in shown


def test_a_dry_run_shows_every_member(capsys, texts, tmp_path):
    file = written(texts, tmp_path, **AXES)
    rows = json.loads(study(capsys, "run", file, "--out", tmp_path / "new", "--dry-run", "--json").out)
    assert len(rows) == 8
    assert rows[0]["member"] == "context 19, size layers 1"
    assert rows[-1]["folder"] == f"{tmp_path}/new/members/context=37,size=layers_2/runs/K=V_MQA_seed0"
    shown = study(capsys, "run", file, "--out", tmp_path / "new", "--dry-run").out
    assert "8 runs (4 members)" in shown
    assert not (tmp_path / "new").exists()


def test_runs_of_a_sweep_are_counted_and_told_by_their_point(capsys, texts, tmp_path):
    made = study(capsys, "run", written(texts, tmp_path, **SWEEP), "--out", tmp_path / "out")
    lines = [line.split(": done in ")[0] for line in made.err.splitlines()]
    assert lines[0] == "1 of 8: QKV, seed 0, learning_rate 0.001"
    assert lines[6:] == ["7 of 8: QKV, seed 1, learning_rate 0.003", "8 of 8: K=V MQA, seed 1, learning_rate 0.003"]
    assert "ran with" in made.out
    assert "learning_rate 0.01" in made.out


def test_show_has_the_sweep_as_a_table_as_json_and_as_an_image(capsys, swept, monkeypatch):
    before = files(swept)
    lines = study(capsys, "show", swept, "--sweep", "--markdown").out.splitlines()
    assert lines[0] == "| variant | learning_rate 0.001 | learning_rate 0.003 | learning_rate 0.01 |"
    assert [line.count("✓") for line in lines[2:]] == [1, 1]
    tried = json.loads(study(capsys, "show", swept, "--sweep", "--json").out)
    assert tried == json.loads((swept / "results.json").read_text())["sweep"]
    assert "ran with" in study(capsys, "show", swept, "--markdown").out
    assert study(capsys, "show", swept).out.count("✓") == 2
    drawn = []
    monkeypatch.setattr(look.go.Figure, "to_image", lambda self, **_: drawn.append(self) or b"<svg/>")
    assert study(capsys, "show", swept, "--image", swept.parent / "x.svg", "--figure", "sweep").code == 0
    assert drawn[0].layout.xaxis.title.text == "learning_rate (log scale)"
    assert files(swept) == before


def test_a_study_without_sweep_or_axes_has_neither_to_show(capsys, texts, tmp_path):
    out = tmp_path / "out"
    study(capsys, "run", written(texts, tmp_path), "--out", out)
    assert "the study tiny has no sweep" in refused(capsys, "show", out, "--sweep")
    assert "has no sweep" in refused(capsys, "show", out, "--image", tmp_path / "x.svg", "--figure", "sweep")
    assert "has no axes" in refused(capsys, "show", out, "--image", tmp_path / "x.svg", "--figure", "gaps")


def test_runs_of_a_family_are_counted_over_all_members(capsys, texts, tmp_path):
    made = study(capsys, "run", written(texts, tmp_path, **AXES), "--out", tmp_path / "out")
    lines = [line.split(": done in ")[0] for line in made.err.splitlines()]
    assert lines[0] == "1 of 8: context=19,size=layers_1: QKV, seed 0"
    assert lines[-1] == "8 of 8: context=37,size=layers_2: K=V MQA, seed 0"
    assert made.out.splitlines()[-1] == f"{tmp_path}/out/report.html"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"study.json", "members", "gaps.json", "report.html"}
    for member in (tmp_path / "out/members").iterdir():
        assert {"results.json", "results.csv", "report.html"} <= {path.name for path in member.iterdir()}


def test_report_and_show_print_a_familys_gaps(capsys, family, monkeypatch):
    kept = json.loads((family / "gaps.json").read_text())
    reported = json.loads(study(capsys, "report", family, "--json").out)
    assert reported["members"] == kept["members"]
    before = files(family)
    kept = json.loads((family / "gaps.json").read_text())
    for place in (family, family / "gaps.json"):
        assert json.loads(study(capsys, "show", place, "--json").out) == kept
    lines = study(capsys, "show", family, "--markdown").out.splitlines()
    assert lines[0].startswith(
        "| context | size | variant | parameters | bits per byte | to baseline | perplexity, or gap in % |"
    )
    assert len([line for line in lines if line.startswith("|")]) == 2 + 8
    warning = "Trained too little to be compared, with context 19, size layers 1: K=V MQA does not beat a byte-bigram"
    assert lines[10:12] == ["", f"- {warning} model."]
    shown, _, below = study(capsys, "show", family).out.partition("\n\n")
    assert shown.count("K=V MQA") == 4
    assert below.startswith(warning)
    drawn = []
    monkeypatch.setattr(look.go.Figure, "to_image", lambda self, **_: drawn.append(self) or b"<svg/>")
    assert study(capsys, "show", family, "--image", family.parent / "x.svg").code == 0
    assert drawn[0].layout.yaxis.title.text == "perplexity over QKV’s, %"
    assert files(family) == before


def test_what_is_asked_of_one_study_names_a_familys_members(capsys, family):
    member = family / "members/context=19,size=layers_1"
    for question in (
        ["advise", family, "--within", 1],
        ["show", family, "--to-loss", 2],
        ["show", family, "--sweep"],
        ["show", family, "--image", family / "x.svg", "--figure", "frontier"],
    ):
        assert f"is a family of studies, and this is asked of one: give one of {member}, " in refused(capsys, *question)
    assert study(capsys, "advise", member, "--within", 1).code == 0
    assert study(capsys, "show", member).code == 0
