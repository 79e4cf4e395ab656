"""`twofold study`: run, report, show, list; what they print, write and refuse."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from command_line import run
from tiny_study import STEPS, VARIANTS, content, files
from twofold.report import look
from twofold.study import execute
from twofold.study.load import builtin_studies
from twofold.trials.load import all_builtin_studies

SUMMARY_HEAD = "| variant | parameters | bits per byte | to baseline | cache bytes/token | of largest | verdict |"


@pytest.fixture
def file(texts, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(content(texts)))
    return path


@pytest.fixture
def out(finished_study, tmp_path):
    """A copy of the finished study, to change."""
    return shutil.copytree(finished_study, tmp_path / "out")


def study(capsys, *arguments):
    return run(capsys, "study", *map(str, arguments))


def refused(capsys, *arguments, code=2):
    """The one line on standard error, less the verb."""
    outcome = study(capsys, *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix(f"twofold study {arguments[0]}: ").rstrip("\n")


def test_run_makes_everything(capsys, file, tmp_path):
    out = tmp_path / "made here"
    outcome = study(capsys, "run", file, "--out", out)
    assert outcome.code == 0
    assert [line.split(": done in ")[0] for line in outcome.err.splitlines()] == [
        "1 of 2: QKV, seed 0",
        "2 of 2: K=V MQA, seed 0",
    ]
    assert outcome.out.splitlines()[-1] == f"{out}/report.html"
    written = {path.name for path in out.iterdir()}
    assert written == {
        *("study.json", "origin.json", "runs", ".locks"),
        *("results.json", "results.csv", "report.html"),
    }
    results = json.loads((out / "results.json").read_text())
    assert shlex.split(results["command"]) == ["twofold", "study", "run", str(file), "--out", str(out)]


def test_run_again_only_reports(capsys, file, out):
    before = files(out / "runs")
    outcome = study(capsys, "run", file, "--out", out, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert files(out / "runs") == before
    assert json.loads(outcome.out) == json.loads((out / "results.json").read_text())


def test_the_default_folder_is_named_after_the_study(capsys, file, finished_study, tmp_path, monkeypatch):
    shutil.copytree(finished_study, tmp_path / "runs/tiny")
    monkeypatch.chdir(tmp_path)
    assert study(capsys, "run", file).out.splitlines()[-1] == "runs/tiny/report.html"


def test_dry_run_tells_and_writes_nothing(capsys, file, finished_study, tmp_path):
    before, others = files(finished_study), files(tmp_path)
    for out, state in ((tmp_path / "new", "to run"), (finished_study, "finished")):
        outcome = study(capsys, "run", file, "--out", out, "--dry-run", "--json")
        assert (outcome.code, outcome.err) == (0, "")
        rows = json.loads(outcome.out)
        assert [row["variant"] for row in rows] == list(VARIANTS)
        assert [row["cache_bytes_per_token"] for row in rows] == [2 * 2 * 24 * 4, 2 * 6 * 4]
        assert {(row["state"], row["steps"], row["seed"]) for row in rows} == {(state, STEPS, 0)}
        assert rows[1]["folder"] == f"{out}/runs/K=V_MQA_seed0"
    shown = study(capsys, "run", file, "--out", tmp_path / "new", "--dry-run")
    assert shown.code == 0
    assert all(variant in shown.out for variant in VARIANTS)
    assert files(tmp_path) == others
    assert not (tmp_path / "new").exists()
    assert files(finished_study) == before


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_run_refuses_other_folders_and_settings(capsys, file, out, texts, tmp_path, dry):
    assert refused(capsys, "run", file, "--out", tmp_path, *dry).endswith("choose another folder with --out")
    file.write_text(yaml.safe_dump(content(texts, tokens=5)))
    assert "tokens is 1221 there and 5 here" in refused(capsys, "run", file, "--out", out, *dry)


def test_run_refuses_a_faulty_file(capsys, file, texts, tmp_path):
    file.write_text("name: tiny\ntokens: 5\nvariants: [QKV, K=W]\n")
    assert refused(capsys, "run", file).startswith(f"{file}:3: variants.1: unknown variant 'K=W'")
    assert refused(capsys, "run", "smok").startswith("no study 'smok': did you mean 'smoke'?")
    file.write_text(yaml.safe_dump(content(texts, data={"source": "no/such/texts"})))
    assert "'no/such/texts'" in refused(capsys, "run", file, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_one_line_and_exit_1(capsys, file, tmp_path):
    (tmp_path / "taken").write_text("")
    message = refused(capsys, "run", file, "--out", tmp_path / "taken" / "below", code=1)
    assert message == f"{tmp_path}/taken/below: Not a directory"


def test_a_full_disk_is_one_line_and_exit_1(capsys, file, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device", "record.json")

    monkeypatch.setattr(execute, "write_record", fail)
    message = refused(capsys, "run", file, "--out", tmp_path / "new", code=1)
    assert message == "record.json: No space left on device"
    assert "no run is finished yet" in refused(capsys, "report", tmp_path / "new")


def heeds_interrupts():
    """A shell starts what it runs in the background deaf to interrupts, tests and their processes among it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_ctrl_c_in_a_real_process(texts, tmp_path):
    path, out = tmp_path / "long.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(content(texts, tokens=10**9)))
    command = [sys.executable, "-m", "twofold.cli.main", "study", "run", str(path), "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=heeds_interrupts,
    )
    try:
        deadline = time.monotonic() + 60
        while not any(file.stat().st_size for file in out.glob("runs/*/metrics.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    advice, last = errors.splitlines()[-2:]
    assert (process.returncode, printed, last) == (130, "", "twofold study run: interrupted")
    assert advice.endswith("the same command goes on from the last checkpoint, if there is one")
    assert "Traceback" not in errors
    assert not list(out.rglob("record.json"))


def test_report_writes_the_three_files(capsys, out):
    outcome = study(capsys, "report", out, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == json.loads((out / "results.json").read_text())
    assert {"results.json", "results.csv", "report.html"} <= {path.name for path in out.iterdir()}
    assert "bits per byte" in (out / "report.html").read_text()


def test_report_refuses_what_holds_no_study(capsys, tmp_path):
    told = "holds no study (study.json is not there): give the folder that `study run` made"
    assert refused(capsys, "report", tmp_path) == f"{tmp_path} {told}"
    assert refused(capsys, "report", tmp_path / "no") == f"{tmp_path}/no {told}"


@pytest.mark.parametrize("name", ["study.json", "origin.json", "runs/QKV_seed0/record.json"])
@pytest.mark.parametrize("damage", [b"", b'{"half": ', b"\xff\xfe", b"{}"])
def test_report_names_the_damaged_file(capsys, out, name, damage):
    (out / name).write_bytes(damage)
    assert refused(capsys, "report", out).startswith(f"{out / name}: ")


def test_show_reads_a_folder_or_a_file_and_writes_nothing(capsys, out):
    study(capsys, "report", out)
    before = files(out)
    for place in (out, out / "results.json"):
        shown = study(capsys, "show", place)
        assert (shown.code, shown.err) == (0, "")
        assert all(variant in shown.out for variant in VARIANTS)
    as_json = study(capsys, "show", out, "--json")
    assert json.loads(as_json.out) == json.loads(before["results.json"][0])
    lines = study(capsys, "show", out, "--markdown").out.splitlines()
    assert lines[:2] == [SUMMARY_HEAD, "| :-- | --: | --: | --: | --: | --: | :-- |"]
    assert [line.split(" | ")[0] for line in lines[2:] if line.startswith("|")] == ["| QKV", "| K=V MQA"]
    assert files(out) == before


def test_what_is_missing_stands_below_the_table(capsys, out):
    (out / "runs/K=V_MQA_seed0/record.json").unlink()
    shown = study(capsys, "report", out).out
    assert "not finished yet: 1 of 2 runs" in shown
    warning = "Trained too little to be compared: QKV does not beat a byte-bigram model"
    remarks = shown[shown.index(warning) :].splitlines()
    assert [line.split(":")[0] for line in remarks[1:3]] == ["bigram model of bytes", "not finished yet"]
    assert f"<h1>{warning}" in (out / "report.html").read_text()
    assert warning in study(capsys, "show", out).out
    assert f"\n\n- {warning}" in study(capsys, "show", out, "--markdown").out
    assert "1 of 2 runs are not finished yet" in (out / "report.html").read_text()


def test_show_refuses_what_it_cannot_read(capsys, out, monkeypatch):
    assert refused(capsys, "show", out) == f"{out}/results.json is not there: `twofold study report` makes it"
    (out / "results.json").write_text('{"study": 3}')
    assert refused(capsys, "show", out).startswith(f"{out}/results.json: study: ")


def test_show_draws_an_image_or_says_why_not(capsys, out, monkeypatch):
    study(capsys, "report", out)

    def fail(*_, **__):
        raise RuntimeError("no Chrome here.")

    monkeypatch.setattr(look.go.Figure, "to_image", fail)
    message = refused(capsys, "show", out, "--image", out / "frontier.svg")
    assert message.startswith("cannot draw frontier.svg: images need")
    assert message.endswith("Plotly says: no Chrome here.")
    monkeypatch.setattr(look.go.Figure, "to_image", lambda self, **_: b"<svg/>")
    assert study(capsys, "show", out, "--image", out / "frontier.svg") == (0, "", "")
    assert (out / "frontier.svg").read_bytes() == b"<svg/>"
    drawn = []
    monkeypatch.setattr(look.go.Figure, "to_image", lambda self, **_: drawn.append(self) or b"<svg/>")
    for name in ("frontier", "differences"):
        assert study(capsys, "show", out, "--image", out / "x.svg", "--figure", name).code == 0
    assert [figure.layout.xaxis.title.text for figure in drawn] == [
        "measured cache per token (log scale)",
        "bits per byte minus QKV’s",
    ]
    assert "not one of" in refused(capsys, "show", out, "--image", out / "x.svg", "--figure", "pie")


def test_show_counts_tokens_to_a_loss(capsys, out):
    study(capsys, "report", out)
    progress = json.loads(study(capsys, "show", out, "--to-loss", 9, "--json").out)
    assert [one["label"] for one in progress] == list(VARIANTS)
    assert progress[0]["to_baseline"] == 1
    shown = study(capsys, "show", out, "--to-loss", 0.001).out
    assert shown.count("not reached") == len(VARIANTS)
    assert "above 0, not -1" in refused(capsys, "show", out, "--to-loss", -1)


def test_advise_answers_in_words_and_in_json(capsys, out):
    study(capsys, "report", out)
    before = files(out)
    smallest = min(json.loads((out / "results.json").read_text())["summary"], key=lambda e: e["cache_bytes_per_token"])
    nobody = study(capsys, "advise", out, "--cache", 1)
    assert nobody.out.splitlines()[:2] == [
        f"no variant here meets this; nearest is {smallest['label']}",
        "because:",
    ]
    advice = json.loads(study(capsys, "advise", out, "--cache", "1KiB", "--within", 5, "--json").out)
    assert advice["budget"] == {"cache": 1024, "quality": None, "within": 5}
    assert advice["answer"] in ("take", "cannot say", "none meets it")
    assert advice["reasons"]
    assert study(capsys, "advise", out / "results.json", "--quality", 0.01).code == 0
    assert files(out) == before


def test_advise_says_what_it_needs_and_takes(capsys):
    told = " ".join(study(capsys, "advise", "--help").out.replace("│", " ").split())
    assert "what --cache, --quality and --within say: at least one of them is needed" in told
    assert "of a family, a member's" in told
    assert "gaps.json" not in told


def test_advise_refuses_what_is_no_budget(capsys, out):
    assert "is not there: `twofold study report` makes it" in refused(capsys, "advise", out, "--within", 1)
    assert "at least one of cache, quality and within" in refused(capsys, "advise", out)
    assert "cannot read '1kb/s'" in refused(capsys, "advise", out, "--cache", "1kb/s")
    assert "within must be a number of at least 0, not -1" in refused(capsys, "advise", out, "--within", -1)


def test_another_baseline_is_another_view_of_the_same_runs(capsys, texts, out):
    path = out.parent / "other.yaml"
    path.write_text(yaml.safe_dump(content(texts, baseline=VARIANTS[1])))
    records = {name: kept for name, kept in files(out).items() if name.endswith("record.json")}
    results = json.loads(study(capsys, "run", path, "--out", out, "--json").out)
    assert results["baseline"] == VARIANTS[1]
    assert {name: kept for name, kept in files(out).items() if name.endswith("record.json")} == records
    path.write_text(yaml.safe_dump(content(texts, baseline="Q=K")))
    assert f"choose one of {', '.join(VARIANTS)}" in refused(capsys, "run", path, "--out", out)


def test_list_names_the_built_in_studies(capsys):
    outcome = study(capsys, "list", "--json")
    listed = json.loads(outcome.out)
    assert [study["name"] for study in listed] == list(all_builtin_studies())
    common = {"name", "description", "variants", "seeds"}
    for study_listed in listed:
        of_text = study_listed["name"] in builtin_studies()
        assert study_listed.keys() == common | ({"tokens"} if of_text else {"tasks"})
    shown = study(capsys, "list")
    assert (shown.code, shown.err) == (0, "")
    assert {"demo", "smoke", "equal-cache"} <= set(shown.out.split())
