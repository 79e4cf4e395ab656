"""`twofold evaluate`: the record's numbers again, or other text."""

import json
import math
import shutil

import pytest

from command_line import run
from tiny_study import VARIANTS, tiny_model, write_texts


@pytest.fixture
def run_folder(finished_study, tmp_path):
    """A copy of one finished run, to change."""
    return shutil.copytree(finished_study / "runs/QKV_seed0", tmp_path / "run")


def refused(capsys, *words):
    """The one line on standard error, less the verb."""
    outcome = run(capsys, "evaluate", *map(str, words))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("twofold evaluate: ").rstrip("\n")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("below", ["", "model"])
def test_it_gives_the_records_validation(capsys, finished_study, variant, below):
    folder = finished_study / "runs" / f"{variant.replace(' ', '_')}_seed0"
    outcome = run(capsys, "evaluate", str(folder / below), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads((folder / "record.json").read_text())
    assert json.loads(outcome.out) == {"variant": variant, **record["validation"]}


def test_it_shows_the_same_as_a_table(capsys, finished_study):
    folder = finished_study / "runs/QKV_seed0"
    validation = json.loads((folder / "record.json").read_text())["validation"]
    shown = run(capsys, "evaluate", str(folder))
    assert (shown.code, shown.err) == (0, "")
    for value in (f"{validation['bits_per_byte']:.4f}", f"{validation['loss']:.4f}", f"{validation['tokens']:,}"):
        assert value in shown.out


def test_other_text_is_scored_whole(capsys, finished_study, tmp_path):
    (tmp_path / "text.txt").write_text("return self\n" * 31)
    command = ["evaluate", str(finished_study / "runs/QKV_seed0"), "--data", str(tmp_path / "text.txt"), "--json"]
    scored = json.loads(run(capsys, *command).out)
    assert (scored["bytes"], scored["tokens"]) == (12 * 31, 12 * 31 + 1)
    assert scored["bits_per_byte"] == pytest.approx(scored["loss"] * scored["tokens"] / scored["bytes"] / math.log(2))
    assert json.loads(run(capsys, *command, "--batch", "1").out)["loss"] == pytest.approx(scored["loss"], rel=1e-6)
    assert json.loads(run(capsys, *command, "--context", "5").out)["loss"] != scored["loss"]


def test_a_model_without_record_needs_text(capsys, texts, tmp_path):
    tiny_model(width=12, heads=2).save_pretrained(tmp_path)
    assert refused(capsys, tmp_path).endswith("has no record.json that names its held-out text: give text with --data")
    scored = run(capsys, "evaluate", str(tmp_path), "--data", str(texts), "--json")
    assert json.loads(scored.out)["loss"] == pytest.approx(math.log(257), rel=0.5)


def test_text_that_has_changed_is_not_taken_for_the_runs_own(capsys, run_folder, tmp_path):
    record = json.loads((run_folder / "record.json").read_text())
    record["configuration"]["data"]["source"] = str(write_texts(tmp_path / "texts", seed=1))
    (run_folder / "record.json").write_text(json.dumps(record))
    assert refused(capsys, run_folder) == (
        f"{tmp_path}/texts has changed since the run, which held out other texts: give text with --data"
    )


@pytest.mark.parametrize("option", ["--context", "--batch"])
def test_sizes_are_at_least_one(capsys, run_folder, option):
    assert refused(capsys, run_folder, option, "0").startswith("Context and batch size must be at least 1")


def test_what_is_no_model_or_damaged(capsys, run_folder, tmp_path):
    assert refused(capsys, tmp_path / "no").startswith(f"{tmp_path}/no is not a folder")
    assert refused(capsys, tmp_path).startswith(f"{tmp_path} holds no model")
    (run_folder / "record.json").write_text("{")
    assert refused(capsys, run_folder).startswith(f"{run_folder}/record.json: the whole file: ")
    weights = run_folder / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert refused(capsys, run_folder).startswith(f"{run_folder}/model: the weights are damaged (")
    config = run_folder / "model/config.json"
    config.write_text(config.read_text().replace('"twofold"', '"llama"'))
    assert refused(capsys, run_folder) == f"{run_folder}/model holds a 'llama' model and not a Twofold one"


@pytest.mark.parametrize(
    ("text", "message"), [(b"", "Nothing to read in"), (b"a\0b", "binary"), (b"\xff\xfe", "UTF-8"), (None, "no file")]
)
def test_text_that_will_not_do(capsys, run_folder, tmp_path, text, message):
    path = tmp_path / "text"
    if text is not None:
        path.write_bytes(text)
    assert message in refused(capsys, run_folder, "--data", path)


def test_the_cost_of_a_rounded_cache_is_shown(capsys, finished_study, monkeypatch):
    command = ["evaluate", str(finished_study / "runs/QKV_seed0"), "--cache-dtype", "int8"]
    found = json.loads(run(capsys, *command, "--json").out)
    record = json.loads((finished_study / "runs/QKV_seed0/record.json").read_text())
    assert found["bits_per_byte"] == record["validation"]["bits_per_byte"] != found["cached_bits_per_byte"]
    expected = 100 * (found["cached_bits_per_byte"] / found["bits_per_byte"] - 1)
    assert (found["cache_dtype"], found["cached_percent"]) == ("int8", pytest.approx(expected))
    shown = run(capsys, *command)
    assert (shown.code, shown.err) == (0, "")
    assert f"{found['cached_bits_per_byte']:.4f}" in shown.out
    monkeypatch.setattr("twofold.cli.evaluate.TOLERATED", expected - 1)
    assert run(capsys, *command).err.startswith("Warning: a cache of int8 costs")
    assert "int4" in refused(capsys, finished_study / "runs/QKV_seed0", "--cache-dtype", "int4")


def test_settings_alone_cannot_reach_the_training_text(capsys, finished_study):
    folder = finished_study / "runs/QKV_seed0"
    for setting in ("data.held_out=0.9", "data.source=python-stdlib"):
        message = refused(capsys, folder, "--set", setting)
        assert message.startswith(f"{setting.partition('=')[0]} says which text the run held out")
    record = json.loads((folder / "record.json").read_text())["validation"]
    apart = json.loads(run(capsys, "evaluate", str(folder), "--set", "data.packing=separate", "--json").out)
    assert (apart["bytes"], apart["tokens"]) == (record["bytes"], record["tokens"])
    assert apart["loss"] != record["loss"]
