"""What a decode step over inputs takes: `python tests/folding_input_steps.py`, with `--record FILE.json`.

One attention layer at the sizes of GPT-2 and of OPT-1.3B, float32, batch 1, random weights: the whole layer for one new
token, folded over inputs, stock over keys and values in a static cache and in a dynamic one, which copies all of them
to append one, and folded but with keys and values of all rows made anew at each step ("expanded"). All in turn, in one
process, on as many threads as torch has.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, GPT2Config, GPT2Model, OPTConfig, OPTModel, StaticCache
from transformers.cache_utils import Cache

from twofold.bench.timing import interleaved, paired, timed
from twofold.environment import environment
from twofold.folding import inputs
from twofold.folding.fold import fold
from twofold.folding.rows import adopt

TOKENS = (512, 1024, 4096)


def gpt2() -> torch.nn.Module:
    return GPT2Model(GPT2Config(n_layer=1, vocab_size=8, bos_token_id=0, eos_token_id=0))


def opt() -> torch.nn.Module:
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8, "word_embed_proj_dim": 2048}
    return OPTModel(OPTConfig(num_hidden_layers=1, vocab_size=8, **sizes))


SIZES = {"gpt2": gpt2, "opt-1.3b": opt}


def attention(model: torch.nn.Module) -> torch.nn.Module:
    return next(module for module in model.modules() if getattr(module, "layer_idx", None) == 0)


def filled(cache: Cache, key: torch.Tensor, value: torch.Tensor | None) -> Cache:
    cache.update(key, value, 0)
    return cache


def measure(name: str, tokens: int, repeats: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    stock, folded = SIZES[name]().eval(), SIZES[name]().eval()
    folds = fold(folded).folds
    one, other = attention(stock), attention(folded)
    width = one.embed_dim
    x_BTM, rows_BGSM = torch.randn(1, 1, width), torch.randn(1, 1, tokens, width)
    states = [torch.randn(1, one.num_heads, tokens, one.head_dim) for _ in range(2)]
    static = filled(StaticCache(config=stock.config, max_cache_len=tokens + 1), *states)
    dynamic = filled(DynamicCache(), *states)
    rows = DynamicCache()
    adopt(rows, folds, {})
    filled(rows, rows_BGSM, None)
    absorbs = inputs.absorbs

    def step(layer, cache):
        layer(x_BTM, cache=cache, attention_mask=None)
        cache.crop(-1)

    def expanded():
        inputs.absorbs = lambda *_: False
        step(other, rows)
        inputs.absorbs = absorbs

    calls = {
        "folded": lambda: step(other, rows),
        "static": lambda: step(one, static),
        "dynamic": lambda: step(one, dynamic),
    }
    times = interleaved({called: timed(call) for called, call in calls.items()}, repeats, warm_up=3)
    milliseconds = {name: 1e3 * float(np.median(seconds)) for name, seconds in times.items()}
    anew = interleaved({"expanded": timed(expanded)}, 3)["expanded"]
    over = {name: 1 / paired(times["folded"], times[name])[0] for name in ("static", "dynamic")}
    return {
        "milliseconds": milliseconds | {"expanded": 1e3 * float(np.median(anew))},
        "folded_over": over,
    }


def table(rows: list[dict]) -> str:
    lines = [
        "| layer | cached tokens | folded, ms | stock static, ms | folded over it | stock dynamic, ms "
        "| folded over it | expanded, ms |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        took, over = row["milliseconds"], row["folded_over"]
        figures = (took["folded"], took["static"], over["static"], took["dynamic"], over["dynamic"], took["expanded"])
        told = " | ".join(f"{figure:.2f}" for figure in figures)
        lines.append(f"| {row['layer']} | {row['tokens']:,} | {told} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    parser.add_argument("--show", type=Path, help="print the table of such a file and measure nothing")
    options = parser.parse_args()
    if options.show:
        print(table(json.loads(options.show.read_text())["rows"]))
        return
    with torch.no_grad():
        rows = [
            {"layer": name, "tokens": tokens, **measure(name, tokens, options.repeats)}
            for name in SIZES
            for tokens in TOKENS
        ]
    print(table(rows))
    if options.record:
        made = {"command": " ".join(["python", *sys.argv]), "threads": torch.get_num_threads()}
        made |= {"environment": environment(), "rows": rows}
        options.record.write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
