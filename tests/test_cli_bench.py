"""`twofold bench`: what it prints, writes and refuses."""

import json

import pytest

from bench_records import generate_rows, limit_rows, memory_rows, record
from command_line import run
from twofold.bench import train
from twofold.bench.record import ALWAYS, read_bench, write_bench

BENCHES = ("attention", "generate", "memory", "train", "prefill", "fold", "export")


@pytest.fixture
def stored(tmp_path):
    def write(made):
        write_bench(made, tmp_path / "bench.json")
        return str(tmp_path / "bench.json")

    return write


@pytest.mark.parametrize("bench", [*BENCHES, "show"])
def test_help_has_examples(bench, capsys):
    outcome = run(capsys, "bench", bench, "--help")
    assert outcome.code == 0
    assert f"twofold bench {bench} " in outcome.out
    assert "Examples" in outcome.out


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(train, "QUICK_LOADS", (train.Load("tiny", "paper", 1, 8),))


def test_a_bench_prints_json_and_writes_its_record(short, capsys, tmp_path):
    outcome = run(capsys, "bench", "train", "--quick", "--repeats", "2", "--json", "--out", str(tmp_path / "t.json"))
    assert outcome.code == 0, outcome.err
    printed = json.loads(outcome.out)
    assert read_bench(tmp_path / "t.json").model_dump(mode="json") == printed
    assert printed["repeats"] == 2
    assert printed["command"].startswith("twofold bench train --quick")
    assert {"read_bandwidth_gbs", "fma_peak_gflops", "processor", "threads", "isa"} <= set(printed["machine"])
    (row,) = printed["rows"]
    assert set(ALWAYS) <= set(row)
    assert row["name"] == "train/tiny/paper/1x8/QKV"
    assert "bench train: 1 of 1: tiny, paper block" in outcome.err


def test_a_bench_prints_a_table(short, capsys):
    outcome = run(capsys, "bench", "train", "--quick", "--repeats", "1")
    assert outcome.code == 0, outcome.err
    for word in ("tiny/paper/1x8/QKV", "transformers GPT-2", "interquartile range", "load average", "thread"):
        assert word in outcome.out


def test_show_repeats_a_record(stored, capsys):
    made = record(left_out=("llama.cpp is left out: not here",))
    outcome = run(capsys, "bench", "show", stored(made))
    for word in ("15M/K=V/3000", "Llama", "2.80", "50%", "40.0 GB/s", "llama.cpp is left out", "+1.000 ms per token"):
        assert word in outcome.out
    assert json.loads(run(capsys, "bench", "show", stored(made), "--json").out) == made.model_dump(mode="json")


def test_markdown_is_a_table_with_remarks(stored, capsys):
    out = run(capsys, "bench", "show", stored(record()), "--markdown").out
    heading, rule, *rest = out.splitlines()
    assert heading.count("|") == rule.count("|") == rest[0].count("|")
    assert len([line for line in rest if line.startswith("|")]) == len(generate_rows())
    assert "- Some <Processor>, 2 threads, avx2" in out


@pytest.mark.parametrize(
    ("rows", "present", "absent"),
    [
        (memory_rows(), ("of formula", "101.56%", "2.03"), ("longest context", "its ms", "spread")),
        (limit_rows(), ("longest context", "40,960", "512.00"), ("of formula", "ratio")),
    ],
    ids=["resident", "limit"],
)
def test_memory_has_columns_of_its_own(rows, present, absent, stored, capsys):
    out = run(capsys, "bench", "show", stored(record("memory", rows))).out
    table = out.partition("\n\n")[0]
    assert all(word in out for word in present)
    assert not any(word in table for word in absent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--out", "/no/such/folder/x.json"), "there is no folder"),
        (("prefill", "--image", "/no/such/folder/x.svg"), "there is no folder"),
        (("attention", "--repeats", "0"), "repeats"),
        (("memory", "--limit", "512"), "weights of 15M alone take"),
        (("memory", "--limit", "plenty"), "cannot read 'plenty' as an amount of memory"),
        (("memory", "--preset", "7B"), "unknown preset '7B'"),
        (("memory", "--context", "1000000000"), "GiB free"),
        (("memory", "--dtype", "int8"), "choose one of"),
        (("show", "nowhere.json"), "nowhere.json is not there"),
        (("speed",), "speed"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments, message, capsys):
    outcome = run(capsys, "bench", *arguments)
    assert outcome.code == 2
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("twofold bench")
    assert message in last
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def test_an_image_of_an_unknown_kind_is_refused(stored, capsys, tmp_path):
    outcome = run(capsys, "bench", "show", stored(record()), "--image", str(tmp_path / "figure.bmp"))
    assert outcome.code == 2
    assert ".svg" in outcome.err


def test_an_image_that_cannot_be_drawn_is_told_before_anything_is_measured(short, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("twofold.report.look.find_spec", lambda name: None)
    outcome = run(capsys, "bench", "train", "--quick", "--image", str(tmp_path / "t.svg"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "images need the package kaleido" in outcome.err
    assert "1 of 1" not in outcome.err


def test_a_busy_machine_is_told(stored, capsys):
    busy = record()
    busy = busy.model_copy(update={"machine": busy.machine.model_copy(update={"load_average": (9.0, 9.5)})})
    assert "NOT RELIABLE" in run(capsys, "bench", "show", stored(busy)).out
    assert "NOT RELIABLE" not in run(capsys, "bench", "show", stored(record())).out
