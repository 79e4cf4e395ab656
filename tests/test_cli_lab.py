"""`twofold lab`: trains its models once, takes runs that are there, and refuses what it cannot show."""

import json
import shutil
import subprocess
import sys

import torch

from command_line import run
from pages import Reader
from tiny_study import files
from twofold.models.load import load_model

SHORT = ("tokens=1024", "model.layers=1", "data.context=32", "data.held_out=0.2")


def models_in(page):
    record = next(text for kind, text in Reader(page.read_text()).scripts if kind == "application/json")
    return json.loads(record)["models"]


def refused(capsys, *words):
    """The one line on standard error, less the verb."""
    outcome = run(capsys, "lab", *map(str, words))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("twofold lab: ").rstrip("\n")


def test_its_own_models_are_trained_once(capsys, texts, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    out = tmp_path / "lab"
    words = ["lab", "--out", str(out), *(word for one in (f"data.source={texts}", *SHORT) for word in ("--set", one))]
    first = run(capsys, *words)
    assert (first.code, first.out) == (0, f"{out}/lab.html\n")
    assert [line.split(": done in ")[0] for line in first.err.splitlines()] == [
        f"{number} of 4: {variant}, seed 0" for number, variant in enumerate(("QKV", "K=V", "Q=K", "Q=K=V"), 1)
    ]
    trained = files(out / "models" / "runs")
    second = run(capsys, *words, "--open", "--sentence", "import os")
    assert (second.code, second.err) == (0, "")
    assert files(out / "models" / "runs") == trained
    assert opened == [(out / "lab.html").as_uri()]
    models = models_in(out / "lab.html")
    assert [model["label"] for model in models] == ["QKV", "K=V", "Q=K", "Q=K=V"]
    assert all(model["bits_per_byte"] > 1 and model["cache"]["tokens"] == len("import os") for model in models)


def test_runs_that_are_there_are_shown(capsys, finished_study, tmp_path):
    runs = sorted(finished_study.glob("runs/*"))
    outcome = run(capsys, "lab", *map(str, runs), "--out", str(tmp_path), "--sentence", "os = []")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"{tmp_path}/lab.html\n", "")
    models = models_in(tmp_path / "lab.html")
    assert sorted(model["label"] for model in models) == ["K=V MQA", "QKV"]
    assert {model["rotated_dims"] for model in models} == {6}
    assert [path.name for path in tmp_path.iterdir()] == ["lab.html"]


def test_mistakes_are_told_in_a_line(capsys, finished_study, tmp_path):
    one = next(finished_study.glob("runs/*"))
    assert "give one of them" in refused(capsys, finished_study)
    assert "is not a folder" in refused(capsys, tmp_path / "absent")
    assert "one to 4 models, and 5" in refused(capsys, *[one] * 5)
    assert "--set changes the models" in refused(capsys, one, "--set", "tokens=9")
    assert "unknown key 'tokns'" in refused(capsys, "--set", "tokns=9", "--out", tmp_path / "new")
    assert "another --sentence" in refused(capsys, one, "--sentence", "x" * 65, "--out", tmp_path)
    assert "not UTF-8 from its character 1 on" in refused(capsys, "--sentence", "a\udcff\udcfe", "--out", tmp_path)
    windowed = shutil.copytree(one, tmp_path / "windowed")
    config = json.loads((windowed / "model/config.json").read_text())
    changed = {**config, "sliding_window": 5, "layer_pattern": "S"}
    (windowed / "model/config.json").write_text(json.dumps(changed))
    assert "does not show a window" in refused(capsys, windowed)
    assert not (tmp_path / "lab.html").exists()


def test_a_run_that_diverged_is_refused_by_name(capsys, finished_study, tmp_path):
    diverged = shutil.copytree(next(finished_study.glob("runs/*")), tmp_path / "diverged")
    model = load_model(diverged)
    with torch.no_grad():
        model.model.norm.weight[:2] = torch.tensor([torch.nan, torch.inf])
    model.save_pretrained(diverged / "model")
    assert f"{diverged}: 2 of its weights are NaN" in refused(capsys, diverged, "--out", tmp_path)
    assert not (tmp_path / "lab.html").exists()


def test_a_machine_without_a_browser_is_told_where_the_page_is(capsys, finished_study, tmp_path, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    one = next(finished_study.glob("runs/*"))
    outcome = run(capsys, "lab", str(one), "--out", str(tmp_path), "--open")
    assert outcome.code == 2
    assert "no browser was found" in outcome.err
    assert (tmp_path / "lab.html").is_file()


def test_help_needs_no_torch():
    code = (
        "import sys\nfrom twofold.cli.main import main\ntry:\n    main(['lab', '--help'])\n"
        "except SystemExit:\n    sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "RUN" in done.stdout
