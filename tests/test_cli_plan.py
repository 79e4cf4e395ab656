"""`twofold plan`: its numbers for programs and for people."""

import json
import re

import pytest

from command_line import run

FULL = ["plan", "--preset", "300M", "--variant", "K=V GQA-4", "--context", "32768", "--tokens", "2048"]
FULL += ["--dtype", "bfloat16", "--batch", "32", "--memory", "24GiB"]
COMPARED = ["plan", "--preset", "1.2B", "--variant", "QKV", "--variant", "K=V MQA", *FULL[5:]]


def as_json(capsys, *arguments):
    outcome = run(capsys, *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_json_holds_the_promised_keys(capsys):
    plan = as_json(capsys, *FULL)
    assert plan["variant"] == "K=V GQA-4"
    assert plan["parameters"] == 268_798_976
    assert plan["attention_parameters"] == 47_232_000
    assert set(plan["macs"]) == {"attention", "mlp", "head", "total"}
    assert plan["cache_bytes_per_token"] == 10 * 1024
    assert plan["cache_bytes"] == 320 * 2**20
    assert plan["cache_bytes_batch"] == 32 * plan["cache_bytes"]
    assert plan["sequences_that_fit"] == 75
    assert len(plan["warnings"]) == 1


def test_json_without_memory_does_not_say_what_fits(capsys):
    plan = as_json(capsys, "plan", "--preset", "tiny")
    assert (plan["memory_bytes"], plan["sequences_that_fit"]) == (None, None)


def test_several_variants_are_a_list_in_the_order_given(capsys):
    plans = as_json(capsys, "plan", "--variant", "K=V MQA", "--variant", "QKV")
    assert [plan["variant"] for plan in plans] == ["K=V MQA", "QKV"]
    assert plans[1]["cache_bytes"] == 32 * plans[0]["cache_bytes"]


def test_every_size_can_be_overridden(capsys):
    sizes = ["--layers", "2", "--width", "5", "--heads", "3", "--head-dim", "2", "--mlp", "7", "--vocab", "13"]
    plan = as_json(capsys, "plan", *sizes, "--positions", "11", "--variant", "K=V MQA")
    assert plan["parameters"] == 65 + 55 + 166 + 164 + 50
    assert (plan["context"], plan["tokens"], plan["cache_bytes"]) == (11, 11, 2 * 2 * 11 * 2)
    modern = as_json(capsys, "plan", *sizes, "--block", "modern", "--rotary", "full", "--untied", "--variant", "QKV")
    assert modern["parameters_by_part"] == {
        "embedding": 65,
        "positions": 0,
        "attention": 2 * 4 * 30,
        "mlp": 2 * 3 * 35,
        "norm": 25,
        "head": 65,
    }


def test_people_read_exact_bytes_and_mib(capsys):
    outcome = run(capsys, *FULL)
    assert (outcome.code, outcome.err) == (0, "")
    words = " ".join(outcome.out.split())
    for phrase in (
        "K=V GQA-4",
        "parameters 268,798,976 268.80 M",
        "attention 47,232,000",
        "multiply-accumulates, 2,048 tokens 717,527,973,888",
        "bytes per token 10,240",
        "per sequence of 32,768 335,544,320 320.00 MiB",
        "per batch of 32 10,737,418,240 10,240.00 MiB",
        "sequences that fit 75",
        "warning: context 32,768 exceeds the 2,048 positions",
    ):
        assert phrase in words


def test_a_plan_without_trouble_warns_of_nothing(capsys):
    assert "warning" not in run(capsys, "plan").out


def test_a_comparison_names_the_variant_that_a_warning_is_about(capsys):
    out = run(capsys, *COMPARED).out
    warnings = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert "context 32,768" in warnings[0]
    assert warnings[1].startswith("warning: QKV: a batch of 32 does not fit")


@pytest.mark.parametrize("columns", ["30", "80"])
def test_numbers_are_never_cut(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    both = ["--variant", "QKV", "--variant", "K=V MQA"]
    compared = run(
        capsys, "plan", "--preset", "1.2B", *both, "--context", "32768", "--memory", "24GiB", "--batch", "32"
    )
    assert re.search(r"QKV +1,215\.10 +369\.28 +2,856\.69 +180,224 +5,632\.00 +180,224\.00 +3", compared.out)
    assert "…" not in compared.out + run(capsys, *FULL).out


def test_a_comparison_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capsys, *FULL, "--variant", "QKV").out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_no_colour_codes_where_nobody_sees_them(capsys):
    assert "\x1b" not in run(capsys, *FULL).out
