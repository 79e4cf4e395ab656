"""What each measure is called on the page of `twofold explain`, and which figure it belongs to."""

from __future__ import annotations

import re

from twofold.report.explain_families import FAMILIES, Words

PAIRS = {"kv": "K–V", "qk": "Q–K", "qv": "Q–V", "ov": "OV", "q": "Q", "k": "K", "v": "V"}
UNDRAWN = {"dims", "probe_classes", "probe_positions"}
"""What is the same in every layer."""
MARKS = {"random": "random", "most": "most possible", "chance": "chance"}
BASELINE = re.compile(r"_(random|most|chance)(?=_|$)")
"""What marks a number as one to hold another against: of random matrices, the largest possible, of even attention."""
NO_WORDS = "As the record names it; docs/explain.md says what it is."


def words_of(section: str, name: str) -> Words:
    """The family of a measure or of its baseline; one of its own for a name that is not known here."""
    base = BASELINE.sub("", name)
    known = next((words for words in FAMILIES[section] if re.fullmatch(words.pattern, base)), None)
    return known or Words(re.escape(base), base.replace("_", " "), NO_WORDS)


def is_baseline(name: str) -> bool:
    """Whether the number is one to hold another against."""
    return BASELINE.search(name) is not None


def line_name(section: str, name: str) -> str:
    """What a line is called beside the others of its family: `K–V`, `V from K`, `K–V, random`."""
    base, words = BASELINE.sub("", name), words_of(section, name)
    match = re.fullmatch(words.pattern, base)
    group, mark = (match[1] if match and match.re.groups else ""), BASELINE.search(name)
    if mark and not group:
        return MARKS[mark[1]]
    said = " ".join(PAIRS.get(word, word) for word in (group or words.title).split("_"))
    return f"{said}, {MARKS[mark[1]]}" if mark else said
