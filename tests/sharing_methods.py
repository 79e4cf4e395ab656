"""What ways of sharing cost before training: `python tests/sharing_methods.py MODEL --text FIT --test T`.

Converts MODEL by the ways below, each fitted to FIT, and takes the perplexity of each on T. `--record FILE.json` adds
every way to the record as it is done and leaves out those that are there, so that a run goes on where it stopped;
`--show FILE.json` prints the table.
"""

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

from twofold.conversion.convert import convert_in
from twofold.conversion.share import share
from twofold.conversion.sharing_plan import Sharing
from twofold.conversion.source import open_source
from twofold.conversion.windows import read_windows
from twofold.data.corpus import load_corpus
from twofold.environment import environment
from twofold.evaluation.heldout import evaluate
from twofold.study.record import write_atomically
from twofold.variants.notation import parse

CONTEXT = 1024
PLAIN = {"weighed": False, "refit": False}
WAYS = {
    "values from keys": ("K=V on_read", {"refit": False}),
    "values from keys, refitted": ("K=V on_read", {}),
    "latent per head, plain": ("MLA on_read", {"method": "latent-head", **PLAIN}),
    "latent per head": ("MLA on_read", {"method": "latent-head"}),
    "one latent, plain": ("MLA on_read", PLAIN),
    "one latent": ("MLA on_read", {}),
    "one latent, sizes by loss": ("MLA on_read", {"cache": 0.5}),
    "three quarters: one latent": ("MLA on_read", {"latent": 0.75}),
    "three quarters: sizes by loss": ("MLA on_read", {"cache": 0.75}),
    "one latent and a rotary key": ("MLA", {"rotary_dims": 32}),
    "one latent and a rotary key, any pairs": ("MLA", {"rotary_dims": 32, "spaced": False}),
    "heads merged, low-rank": ("MQA", {}),
    "latent per head and a rotary key": ("K=V decoupled", {"rotary_dims": 32}),
    "three quarters: half of the layers": ("MLA on_read", {"latent": 0.5, "cache": 0.75}),
    "heads merged, mean": ("MQA", {"method": "mean"}),
}
"""What it is called: the variant, and fields of `Sharing`; a latent as a share of what keys and values take."""


def asked(variant, fields, sizes):
    whole = 2 * sizes.kv_heads * sizes.head_dim
    given = {**fields, **({"latent": round(fields["latent"] * whole)} if "latent" in fields else {})}
    return Sharing(parse(variant), **given)


def measure(arguments, command):
    path = arguments.record
    found = json.loads(path.read_text()) if path and path.exists() else {"ways": {}}
    opened = open_source(arguments.model)
    model = opened.model if opened.is_own else convert_in(opened.model)
    model.eval()
    tokenizer = opened.tokenizer()
    text = read_windows([arguments.text], tokenizer, arguments.tokens, CONTEXT)
    corpus = load_corpus(arguments.test)
    found |= {
        "command": command,
        "fitted": {"source": arguments.text, "sha256": text.sha256, "tokens": text.ids_BT.numel()},
        "test": {"source": arguments.test, "sha256": corpus.sha256},
        "environment": environment(),
    }

    def score(one):
        return evaluate(one, corpus.documents, CONTEXT, 2, tokenizer=tokenizer)

    if "original" not in found:
        scored = score(model)
        found |= {"original": scored.perplexity, "tokens": scored.tokens}
    for name, (variant, fields) in WAYS.items():
        if name in found["ways"]:
            continue
        start = time.monotonic()
        made, record = share(model, asked(variant, fields, model.config.architecture), text.ids_BT)
        seconds = time.monotonic() - start
        found["ways"][name] = record.as_dict() | {"seconds": seconds, "perplexity": score(made).perplexity}
        print(f"{name}: {found['ways'][name]['perplexity']:.2f} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        if path:
            write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())
    return found


def table(found):
    """The record as Markdown."""
    lines = [
        "| way | variant | cache | keys and values lost | output lost | perplexity | of the original's |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
        f"| – | original | 100 % | 0 | 0 | {found['original']:.2f} | 1.000 |",
    ]
    for name in WAYS:
        if name in found["ways"]:
            one = found["ways"][name]
            lost, output = (
                sum(row[key] for row in one["layers"]) / len(one["layers"]) for key in ("lost", "output_lost")
            )
            ratio = one["perplexity"] / found["original"]
            lines.append(
                f"| {name} | {one['to']} | {one['cache_share']:.1%} | {lost:.3f} | {output:.3f} | "
                f"{one['perplexity']:,.2f} | {ratio:,.3f} |"
            )
    return "\n".join(lines)


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--text")
    parser.add_argument("--test")
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--show", type=Path)
    arguments = parser.parse_args(given)
    if arguments.show:
        print(table(json.loads(arguments.show.read_text())))
        return
    if not (arguments.model and arguments.text and arguments.test):
        parser.error("name a MODEL, --text and --test, or --show a record")
    print(table(measure(arguments, shlex.join(["python", *sys.argv]))))


if __name__ == "__main__":
    main()
