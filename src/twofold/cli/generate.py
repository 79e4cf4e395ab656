"""`twofold generate`: text from one trained model, and what its real cache took."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from twofold.cli.output import print_json
from twofold.cli.quantities import mib

EXAMPLES = """[bold]Examples[/bold]
  twofold generate runs/demo/runs/QKV_seed0 "def main():"
  echo "import os" | twofold generate runs/demo/runs/QKV_seed0 -
  twofold generate runs/demo/runs/K=V_MQA_seed0 "class " --temperature 0 --tokens 500"""


def generate(
    model: Annotated[Path, typer.Argument(help="A folder that `train`, `study run`, `convert` or `heal` wrote.")],
    prompt: Annotated[str, typer.Argument(help='Text to continue, "" for a new document; - reads standard input.')],
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.8,
    seed: Annotated[int, typer.Option(help="For drawing tokens.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: text, cache bytes, speed.")] = False,
) -> None:
    """Continue a text. The text goes to standard output, what it cost to standard error."""
    from dataclasses import asdict

    from twofold.cli.progress import quiet_libraries
    from twofold.data.tokenizer import load_tokenizer
    from twofold.evaluation.generation import generate as continue_from
    from twofold.models.load import load_model

    quiet_libraries()
    loaded = load_model(model)
    tokenizer = load_tokenizer(Path(loaded.name_or_path))
    text = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    ids = [tokenizer.end, *tokenizer.encode(text).tolist()]
    made = continue_from(loaded, ids, new_tokens=tokens, temperature=temperature, seed=seed)
    if as_json:
        figures = asdict(made)
        new = figures.pop("token_ids")
        print_json({"prompt": tokenizer.decode(ids), "text": tokenizer.decode(new), "new_tokens": len(new), **figures})
        return
    typer.echo(tokenizer.decode(ids + made.token_ids))
    typer.echo(
        f"cache: {made.bytes_used:,} bytes ({mib(made.bytes_used)} MiB) for {made.cached_tokens:,} tokens; "
        f"{made.decode_tokens_per_second:,.0f} tokens/s",
        err=True,
    )
