"""results.json and results.csv carry the same runs, and the JSON has the keys that readers rely on."""

import csv
import json

import pytest

from synthetic_records import synthetic_record, synthetic_results
from twofold.study.results import read_results, write_results

RUN_KEYS = {"label", "variant", "seed", "parameters", "validation", "cache", "speed", "environment", "sample"}


def three_runs():
    return [
        synthetic_record("MQA", 2.2, seed=1, bytes_per_token=64, text='", \n'),
        synthetic_record("QKV", 2.0, seed=2),
        synthetic_record("MQA", 2.1, seed=0, bytes_per_token=64, text='", \n'),
    ]


def test_results_survive_their_file(tmp_path):
    results = synthetic_results(three_runs(), text="é<&>")
    path, _ = write_results(results, tmp_path / "new")
    assert read_results(path) == results


def test_json_keys(tmp_path):
    path, _ = write_results(synthetic_results(three_runs()), tmp_path)
    data = json.loads(path.read_text())
    assert {"runs", "summary", "frontier"} <= data.keys()
    for run in data["runs"]:
        assert run.keys() >= RUN_KEYS
        assert "documents" not in run
        assert run["validation"].keys() == {"loss", "bits_per_byte", "perplexity", "tokens", "bytes"}
        assert run["cache"].keys() >= {"tokens", "bytes_formula", "bytes_used", "bytes_reserved"}
    assert [entry["variant"] for entry in data["summary"]] == ['MQA", \n', "QKV"]


def test_runs_are_ordered_by_variant_as_given_and_seed():
    runs = synthetic_results(three_runs()).runs
    assert [(run.variant[:3], run.seed) for run in runs] == [("MQA", 0), ("MQA", 1), ("QKV", 2)]


def test_csv_has_one_line_per_run_with_the_json_values(tmp_path):
    records = three_runs()
    records[1] = synthetic_record("QKV", 2.0, seed=2, parameters={"total": 12, "attention": 7, "scales": 5})
    results = synthetic_results(records)
    _, path = write_results(results, tmp_path)
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(results.runs)
    for line, run in zip(lines, results.runs, strict=True):
        assert line["variant"] == run.variant
        assert float(line["validation_bits_per_byte"]) == run.validation.bits_per_byte
        assert int(line["cache_bytes_used"]) == run.cache.bytes_used
        assert line["environment_commit"] == run.environment.commit
        assert line["parameters_scales"] == str(run.parameters.get("scales", ""))


def test_unreadable_results_say_what_to_do(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"results\.json: study: .*; make it again"):
        read_results(path)
