"""Writes the documents of the local tasks: `python -m twofold.evaluation.local_tasks.make` gives the committed files.

They come from a small grammar of Python, and not from real files, which a model may have been trained on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SEED = 20_260_604
TESTS, EXAMPLES = 90, 8
"""Documents that are scored, and those that serve as solved examples."""

Document = dict[str, Any]

NOUNS = ("row", "item", "node", "line", "token", "field", "value", "width", "count", "total", "limit", "offset")
VERBS = ("read", "find", "merge", "check", "build", "parse", "load", "split", "update", "scan")
WORDS = ("amber", "cedar", "delta", "ember", "frost", "grove", "heron", "ivory", "lemon", "maple", "north", "pearl")
BRACKETS = {"(": ")", "[": "]", "{": "}"}


def brackets(rng: random.Random) -> Document:
    """A call over several lines: which line closes the bracket that was opened last? Three choices."""
    outer, inner = rng.sample(sorted(BRACKETS), 2)
    lines = [f"{rng.choice(NOUNS)}s = {rng.choice(VERBS) if outer == '(' else ''}{outer}", f"    {inner}"]
    lines += [f'        "{word}",' for word in rng.sample(WORDS, rng.randint(1, 3))]
    choices = [f"    {BRACKETS[opened]}" for opened in rng.sample(sorted(BRACKETS), 3)]
    return {
        "context": "\n".join(lines) + "\n",
        "choices": choices,
        "label": choices.index(f"    {BRACKETS[inner]}"),
    }


def names(rng: random.Random) -> Document:
    """A function that ends in `return`: which name did it define? Four choices of which the text holds one."""
    given, made, *others = rng.sample(NOUNS, 5)
    lines = [
        f"def {rng.choice(VERBS)}_{rng.choice(WORDS)}({given}s):",
        f"    {made} = {rng.randint(0, 9)}",
        f"    for {given[0]} in {given}s:",
        f"        {made} {rng.choice('+-*')}= {given[0]}",
        "    return",
    ]
    choices = rng.sample([made, *others], 4)
    return {"context": "\n".join(lines), "choices": choices, "label": choices.index(made)}


def repeat(rng: random.Random) -> Document:
    """Assignments, then the same again: write what is missing of the last one."""
    pairs = list(zip(rng.sample(NOUNS, 2), rng.sample(WORDS, 2), strict=True))
    block = "".join(f'{name} = "{word}"\n' for name, word in pairs)
    answer = f'"{pairs[-1][1]}"'
    return {"context": block * 2 + block.removesuffix(f"{answer}\n"), "answer": answer}


def text(rng: random.Random) -> Document:
    """A short function of plain Python."""
    return {"text": "\n".join(_function(rng)) + "\n"}


def _function(rng: random.Random) -> Iterator[str]:
    first, second, made = rng.sample(NOUNS, 3)
    yield f"def {rng.choice(VERBS)}_{second}({first}, {second}=None):"
    yield f'    """{rng.choice(VERBS).capitalize()} the {second} of the {first}."""'
    yield f"    if {second} is None:"
    yield f"        {second} = len({first})"
    if rng.random() < 0.5:
        yield f"    if not {first}:"
        yield f'        raise ValueError("{rng.choice(WORDS)} {first} is empty")'
    yield f"    {made} = []"
    yield f"    for {first[0]} in range({second}):"
    yield f"        {made}.append({first}[{first[0]}] {rng.choice('+-*')} {rng.randint(1, 99)})"
    yield f"    return {rng.choice(('sorted', 'tuple', 'list'))}({made})"


TASKS: dict[str, tuple[Callable[[random.Random], Document], int, int]] = {
    "brackets": (brackets, TESTS, EXAMPLES),
    "names": (names, TESTS, EXAMPLES),
    "repeat": (repeat, TESTS, EXAMPLES),
    "text": (text, TESTS, 0),
}
"""What makes a task's documents, and how many to score and to show."""


def documents(name: str) -> list[Document]:
    """The documents of a task, no two alike, with their split."""
    make, tests, examples = TASKS[name]
    rng = random.Random(f"{SEED} {name}")
    distinct: dict[str, Document] = {}
    while len(distinct) < tests + examples:
        document = make(rng)
        distinct.setdefault(document.get("context") or document["text"], document)
    return [{"split": "train" if n < examples else "test", **each} for n, each in enumerate(distinct.values())]


def write(folder: Path) -> None:
    """One `NAME.jsonl` for each task."""
    for name in TASKS:
        lines = [json.dumps(document) + "\n" for document in documents(name)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    write(FOLDER)
