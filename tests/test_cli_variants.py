"""`twofold variants`: the listing for programs and for people."""

import json

import pytest

from command_line import run
from twofold.cli.variants import in_words
from twofold.variants.notation import PUBLISHED, parse


def test_json_has_exactly_the_promised_fields(capsys):
    outcome = run(capsys, "variants", "--json")
    listed = {entry["variant"]: entry for entry in json.loads(outcome.out)}
    assert list(listed) == [str(variant) for variant in PUBLISHED]
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


def test_every_alias_that_json_names_is_accepted(capsys):
    for entry in json.loads(run(capsys, "variants", "--json").out):
        assert all(str(parse(alias)) == entry["variant"] for alias in entry["aliases"])


def test_people_see_words_row_share_and_the_papers_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(capsys, "variants").out.splitlines()
    by_paper_name = {line.split()[-1]: " ".join(line.split()) for line in lines if line}
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
    ],
)
def test_words(variant, words):
    assert in_words(parse(variant)) == words
