"""`twofold variants`: the listing for programs and for people."""

import json

import pytest

from command_line import run
from twofold.variants.listing import FURTHER, in_words
from twofold.variants.notation import PUBLISHED, parse


def test_json_has_exactly_the_promised_fields(capsys):
    outcome = run(capsys, "variants", "--json")
    listed = {entry["variant"]: entry for entry in json.loads(outcome.out)}
    further = [variant for group in FURTHER.values() for variant in group]
    assert list(listed) == [str(variant) for variant in (*PUBLISHED, *further)]
    assert listed["K=V GQA-4"] == {
        "variant": "K=V GQA-4",
        "aliases": ["Q-GQA-4"],
        "head_width": 1,
        "shared_width": 0,
        "cache_ratio": 0.125,
    }
    assert listed["Q=K"] == {
        "variant": "Q=K",
        "aliases": ["Q=K-V"],
        "head_width": 2,
        "shared_width": 0,
        "cache_ratio": 1.0,
    }
    assert listed["MQA"]["cache_ratio"] == 1 / 16
    assert listed["K=V MQA"]["cache_ratio"] == 1 / 32
    assert all(entry.keys() == listed["QKV"].keys() for entry in list(listed.values())[: len(PUBLISHED)])


@pytest.mark.parametrize(
    ("variant", "head_width", "shared_width", "ratio"),
    [
        ("K=V on_read", 1, 0, 1 / 2),
        ("K=V kept", 1.25, 0, 5 / 8),  # a quarter of the dims twice, as in Gemma 4's global layers
        ("K=V decoupled", 1, 0.5, (16 * 64 + 32) / 2048),
        ("MLA", 4, 0.5, (256 + 32) / 2048),
        ("K=V CLA-2", 1, 0, 1 / 4),
        ("simplified", 1, 0, 1 / 2),
        ("no-WV", 2, 0, 1),
    ],
)
def test_neighbours_rows_are_the_layouts(capsys, variant, head_width, shared_width, ratio):
    listed = {entry["variant"]: entry for entry in json.loads(run(capsys, "variants", "--json").out)}[variant]
    assert (listed["head_width"], listed["shared_width"]) == (head_width, shared_width)
    assert listed["cache_ratio"] == pytest.approx(ratio, rel=1e-12)


def test_a_recurrence_has_no_ratio_but_a_state(capsys):
    listed = {entry["variant"]: entry for entry in json.loads(run(capsys, "variants", "--json").out)}["K=V linear"]
    assert (listed["cache_ratio"], listed["head_width"], listed["state_bytes"]) == (None, 0, 16 * 64 * 65 * 4)


def test_every_alias_that_json_names_is_accepted(capsys):
    for entry in json.loads(run(capsys, "variants", "--json").out):
        assert all(str(parse(alias)) == entry["variant"] for alias in entry["aliases"])


def test_people_see_words_row_share_and_the_papers_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(capsys, "variants").out.splitlines()
    by_paper_name = {line.split()[-1]: " ".join(line.split()) for line in lines if line.strip()}
    assert by_paper_name["Q=K-V"] == "Q=K query = key [ k k k k | v v v v ] 100 % Q=K-V"
    assert by_paper_name["Q-MQA"] == "K=V MQA key = value; 1 KV head [ c c c c ] 3.125 % Q-MQA"
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("QKV", "nothing"),
        ("Q=K=V +", "query = key = value; +"),
        ("GQA-4", "4 KV heads"),
        ("K=V MQA", "key = value; 1 KV head"),
        ("K=V GQA-2 kept", "key = value; 2 KV heads; rotated dims kept beside"),
        ("K=V no-WQ", "key = value; query = input"),
        ("simplified", "all roles = input"),
        ("MLA", "latent, rotary key beside"),
    ],
)
def test_words(variant, words):
    assert in_words(parse(variant)) == words
