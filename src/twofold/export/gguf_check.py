"""Whether a GGUF file computes what the model computes: it is loaded in llama.cpp, and the two are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from twofold.export.check import Check, bytes_per_number, compared_tokens, greedy, in_dtype, require_within
from twofold.export.gguf_engine import cached, logged
from twofold.models.decoder import TwofoldForCausalLM

if TYPE_CHECKING:
    from llama_cpp import Llama

TOLERANCES = {"f32": 1e-4, "f16": 2e-2, "q8_0": 0.2}
"""What logits may differ by, of the largest logit where that is above 1, by how matrices are stored."""
CACHE_MIB = 16
"""Size of the cache that is made: llama.cpp tells it with two decimals of a MiB, from which the numbers come back."""


def require_packages(checked: bool) -> None:
    """Raise ValueError where what writes the file, or what checks it, is missing."""
    if find_spec("gguf") is None:
        raise ValueError("a GGUF file is written with the package gguf: pip install 'twofold[gguf]'")
    if checked and find_spec("llama_cpp") is None:
        raise ValueError(
            "the check of a GGUF file loads it in llama.cpp: pip install llama-cpp-python, or leave the check out "
            "(--no-check)"
        )


def check_gguf(model: TwofoldForCausalLM, path: Path, kind: str, numbers: int) -> Check:
    """Compare `model`, in float32, with the file on random tokens: logits, greedy tokens, caches in float32.

    The size of llama.cpp's cache is what its log says of one for so many tokens as take about `CACHE_MIB` at
    `numbers` per token and layer. Raises ValueError where logits differ by more than rounding explains.
    """
    ours = in_dtype(model, torch.float32)
    ids_BT, new = compared_tokens(model)
    prompt = ids_BT[0].tolist()
    with torch.inference_mode():
        logits_TV = ours(ids_BT[:1], use_cache=False).logits[0].cpu().numpy()
        own_ids, own_cache = greedy(ours, ids_BT[:1], new)
    layers = model.config.num_hidden_layers
    cells = max(1, round(CACHE_MIB * 2**20 / (4 * layers * numbers * 256))) * 256
    with _opened(path, cells) as (llama, log):
        llama.eval(prompt)
        made_TV = llama.scores[: len(prompt)].copy()
        made = _continued(llama, new)
    said = cached(log)
    difference, largest = float(np.abs(logits_TV - made_TV).max()), float(np.abs(logits_TV).max())
    allowed = TOLERANCES[kind] * max(1.0, largest)
    require_within(difference, allowed)
    return Check(
        engine="llama.cpp",
        tokens=len(prompt),
        max_logit_difference=difference,
        largest_logit=largest,
        tolerance=allowed,
        greedy_tokens=new,
        greedy_equal=own_ids[0].tolist() == prompt + made,
        cache_numbers=own_cache.bytes_used / bytes_per_number(ours, own_cache),
        target_cache_numbers=said.bytes / (4 * layers * cells),
        engine_log=said.lines,
    )


@contextmanager
def _opened(path: Path, cells: int) -> Iterator[tuple[Llama, list[str]]]:
    """The model in llama.cpp with a cache of `cells` tokens in float32, and what it logs.

    Without flash attention, which on a CPU computes part of its sums in half precision.
    """
    import llama_cpp

    with logged() as log:
        llama = llama_cpp.Llama(
            str(path),
            n_ctx=cells,
            n_batch=64,
            n_gpu_layers=0,
            flash_attn=False,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            logits_all=True,
            verbose=False,
        )
        try:
            yield llama, log
        finally:
            llama.close()


def _continued(llama: Llama, new: int) -> list[int]:
    made: list[int] = []
    for _ in range(new):
        made.append(int(llama.scores[llama.n_tokens - 1].argmax()))
        llama.eval(made[-1:])
    return made
