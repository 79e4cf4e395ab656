"""llama.cpp as a contender: a model written as a GGUF file, and a session that holds a context of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from transformers import LlamaForCausalLM

from twofold.export import gguf_file
from twofold.export.gguf_engine import Cached, cached, logged
from twofold.export.target import Target

if TYPE_CHECKING:
    from llama_cpp import Llama

NEEDS = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}
"""Modules, and the packages that bring them."""


def write_gguf(model: LlamaForCausalLM, path: Path) -> None:
    """Write the model's weights and sizes as GGUF (float32, without a tokenizer)."""
    target = Target(model.config, model.state_dict(), cache_numbers=0, changes=(), notes=())
    gguf_file.write_gguf(target, path, "f32", None)


@contextmanager
def session(path: Path, capacity: int, threads: int, half: bool = False) -> Iterator[Session]:
    """The model in a GGUF file, with room for `capacity` tokens, on as many threads as torch.

    Keys and values are cached in float32, or where it is `half` in float16, and then flash attention is on. Each is the
    faster setting on a CPU for its rows.
    """
    import llama_cpp

    kept = llama_cpp.GGML_TYPE_F16 if half else llama_cpp.GGML_TYPE_F32
    with logged() as log:
        model = llama_cpp.Llama(
            str(path),
            n_ctx=capacity,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            flash_attn=half,
            type_k=kept,
            type_v=kept,
            verbose=False,
        )
    try:
        yield Session(model, cached(log))
    finally:
        model.close()


class Session:
    """A `Decoder` of `bench.generate`; `cache` is what llama.cpp says of the one that it made."""

    def __init__(self, model: Llama, cache: Cached) -> None:
        self.model = model
        self.cache = cache
        self.last = 0

    def extend(self, ids_T: Tensor) -> None:
        """Hold all of `ids_T` but the last; the first of them are held already."""
        *context, self.last = ids_T.tolist()
        if len(context) > self.model.n_tokens:
            self.model.eval(context[self.model.n_tokens :])

    def decode(self, steps: int) -> float:
        """Make `steps` tokens greedily after the first, forget them, and give the seconds that one took."""
        held = self.model.n_tokens
        token = self.step(self.last)
        started = perf_counter()
        for _ in range(steps):
            token = self.step(token)
        seconds = (perf_counter() - started) / steps
        self.model.n_tokens = held  # `eval` forgets whatever comes after
        return seconds

    def step(self, token: int) -> int:
        """The likeliest token after this one."""
        self.model.eval([token])
        return int(self.logits().argmax())

    def logits(self) -> np.ndarray:
        """Logits of the last position, a view that the next step overwrites."""
        import llama_cpp

        pointer: Any = llama_cpp.llama_get_logits_ith(self.model.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab(),))
