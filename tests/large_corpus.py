"""A text of a gigabyte, tokenised within two gibibytes of memory: `python tests/large_corpus.py --gigabytes 1`.

Makes a seeded text of words as frequent as in a language, and in a process of its own for each tokenizer loads, splits
and tokenises it into a token file. The resident memory of that process and all that it starts is sampled; with the
highest that the kernel noted for the process itself, the larger counts. Fails where that is above the limit, or where
a token is wrong.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from twofold.data.corpus import load_corpus
from twofold.data.split import split
from twofold.data.tokenizer import choose
from twofold.data.tokens import TokenStream, tokenise
from twofold.environment import environment

LIMIT_GIB = 2.0
TOKENIZERS = ("bytes", "bpe-4096")
SECONDS_BETWEEN_SAMPLES = 0.1
WORDS, LINES_AT_ONCE = 40_000, 20_000
TOKENS_AT_ONCE = 2**20


def write_text(path: Path, size: int, seed: int = 0) -> None:
    """Lines of 3 to 25 made-up words each, word k with a frequency of 1 / (k + 3); at least `size` bytes."""
    spell = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstvwz" for b in ("a", "e", "i", "o", "u", "ä", "en", "or")]
    words = np.array(["".join(spell.choices(syllables, k=spell.choice((1, 2, 2, 3, 4)))) for _ in range(WORDS)])
    frequencies = 1 / (np.arange(WORDS) + 3)
    draw = np.random.default_rng(seed)
    written = 0
    with path.open("wb") as file:
        while written < size:
            lengths = draw.integers(3, 26, size=LINES_AT_ONCE)
            drawn = words[draw.choice(WORDS, size=lengths.sum(), p=frequencies / frequencies.sum())].tolist()
            stops = np.cumsum(lengths)
            lines = (" ".join(drawn[stop - n : stop]) for stop, n in zip(stops, lengths, strict=True))
            written += file.write(("\n".join(lines) + "\n").encode())


def tokenise_and_check(text: Path, name: str) -> dict[str, float]:
    """What the measured process does: everything between a source and its windows. Tells seconds and counts."""
    started = time.perf_counter()
    corpus = load_corpus(str(text))
    training, _ = split(corpus, 0.03)
    loaded = time.perf_counter()
    tokenizer = choose(name, lambda: training)
    trained = time.perf_counter()
    stream = tokenise(training, tokenizer)
    done = time.perf_counter()
    assert isinstance(stream.tokens, np.memmap)
    for index in random.Random(1).sample(range(len(training)), 101):
        assert tokenizer.decode(stream.text(index)).encode() == training[index].content
    assert ends_are_in_place(stream, tokenizer.end)
    return {
        "bytes": corpus.bytes,
        "documents": len(corpus.documents),
        "training_tokens": len(stream.tokens),
        "load_seconds": loaded - started,
        "tokenizer_seconds": trained - loaded,
        "tokenise_seconds": done - trained,
        "tokens_per_second": len(stream.tokens) / (done - trained),
    }


def ends_are_in_place(stream: TokenStream, end: int) -> bool:
    """Whether END stands before and after each document and nowhere else; reads the file, since a map would stay."""
    places = []
    with Path(stream.tokens.filename).open("rb") as file:
        for first in range(0, len(stream.tokens), TOKENS_AT_ONCE):
            places.append(first + np.flatnonzero(np.fromfile(file, stream.tokens.dtype, TOKENS_AT_ONCE) == end))
    return np.array_equal(np.concatenate(places), stream.starts - 1)


def measured(text: Path, name: str, cache: Path) -> dict[str, float]:
    """Run `tokenise_and_check` in a process and sample what all its processes hold."""
    command = [sys.executable, __file__, "--measure", name, "--text", str(text)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TWOFOLD_CACHE": str(cache)}
    )
    root = psutil.Process(child.pid)
    peak = 0
    while child.poll() is None:
        peak = max(peak, resident(root))
        time.sleep(SECONDS_BETWEEN_SAMPLES)
    if child.returncode:
        raise SystemExit(f"tokenising with {name} failed")
    told = json.loads(child.stdout.read())
    return {**told, "peak_bytes": max(peak, told.pop("highest_resident_bytes"))}


def resident(root: psutil.Process) -> int:
    """Resident bytes of a process and its children now; what they share counts once for each."""
    total = 0
    try:
        for process in [root, *root.children(recursive=True)]:
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def highest_resident_bytes() -> int:
    """The most that this process ever held, as Linux noted it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def note(record: Path, results: dict[str, dict[str, float]]) -> None:
    """Write the figures; those of other tokenizers, which may take another day, stay as they are."""
    noted = json.loads(record.read_text())["tokenizers"] if record.is_file() else {}
    made = {"command": " ".join(["python", *sys.argv]), "environment": environment()}
    noted |= {name: {**made, **one} for name, one in results.items()}
    record.write_text(json.dumps({"tokenizers": dict(sorted(noted.items()))}, indent=2) + "\n")


def table(results: dict[str, dict[str, float]]) -> str:
    """A record's `tokenizers` as Markdown."""
    lines = [
        "| tokenizer | text, MB | training tokens | peak memory, GiB | tokenising, million tokens/s |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for name, one in results.items():
        figures = (
            one["bytes"] / 1e6,
            one["training_tokens"],
            one["peak_bytes"] / 2**30,
            one["tokens_per_second"] / 1e6,
        )
        lines.append("| {} | {:,.0f} | {:,} | {:.2f} | {:.2f} |".format(name, *figures))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--tokenizers", nargs="+", default=TOKENIZERS)
    parser.add_argument("--limit", type=float, default=LIMIT_GIB, help="GiB of resident memory")
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    parser.add_argument("--show", type=Path, help="print the table of such a file and measure nothing")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--text", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.show:
        print(table(json.loads(options.show.read_text())["tokenizers"]))
        return
    if options.measure:
        told = tokenise_and_check(options.text, options.measure)
        print(json.dumps({**told, "highest_resident_bytes": highest_resident_bytes()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_text(text, int(options.gigabytes * 1e9))
        results = {name: measured(text, name, Path(folder) / "cache") for name in options.tokenizers}
    print(table(results))
    if options.record:
        note(options.record, results)
    too_much = [name for name, one in results.items() if one["peak_bytes"] > options.limit * 2**30]
    if too_much:
        raise SystemExit(f"more than {options.limit} GiB: {', '.join(too_much)}")


if __name__ == "__main__":
    main()
