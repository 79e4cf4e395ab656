"""Decoding: greedy `generate()` over a context that was read once, against transformers' Llama and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from twofold.bench import decoders, llama_cpp, work
from twofold.bench.record import Machine, Row
from twofold.bench.sizes import Effort, fifteen_million, variants
from twofold.bench.timing import Contender, Watch, interleaved, rows
from twofold.evaluation.generation import Clock
from twofold.models.decoder import TwofoldForCausalLM

CONTEXTS = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
QUICK_CONTEXTS = (512, 2_048)
STEPS, QUICK_STEPS = 24, 8
"""Tokens of one measurement."""
CHUNK = 1_024  # tokens that a context grows by in one forward pass


class Decoder(Protocol):
    """A model that holds a context."""

    def extend(self, ids_T: Tensor) -> None:
        """Hold all of these tokens but the last, which a step will read; the first of them are held already."""

    def decode(self, steps: int) -> float:
        """Make `steps` tokens greedily, forget them again, and give the seconds that one took."""


def measure(effort: Effort, machine: Machine, watch: Watch) -> tuple[list[Row], list[str]]:
    """Rows for each variant, context and alternative. Contexts grow, so that each token is read once."""
    contexts, steps = (QUICK_CONTEXTS, QUICK_STEPS) if effort.quick else (CONTEXTS, STEPS)
    ids_T = decoders.random_ids(fifteen_million(), 1, contexts[-1])[0]
    found: list[Row] = []
    with contestants(effort.quick, contexts[-1] + steps + 1) as (ours, others, left_out):
        for number, context in enumerate(contexts):
            watch(number, len(contexts), f"{context:,} tokens of context")
            for decoder in (*ours.values(), *others.values()):
                decoder.extend(ids_T[:context])
            contenders = {name: stepping(decoder, steps) for name, decoder in (*ours.items(), *others.items())}
            times = interleaved(contenders, effort.repeats)
            for variant in ours:
                arch = fifteen_million(variant)
                paired = {"ours": times[variant], **{name: times[name] for name in others}}
                needed = work.decode_step(arch, context)
                roof = machine.roof_seconds(*needed)
                keys = {"variant": variant, "context": context, "bytes": needed.bytes}
                found += rows(f"generate/15M/{variant}/{context}", paired, roof, 1, **keys)
    watch(len(contexts), len(contexts), "")
    return found, left_out


@contextmanager
def contestants(quick: bool, capacity: int) -> Iterator[tuple[dict[str, Decoder], dict[str, Decoder], list[str]]]:
    """Our decoders by variant, the others by name, and what is left out. Room for `capacity` tokens."""
    ours: dict[str, Decoder] = {
        variant: Ours(decoders.ours(fifteen_million(variant))) for variant in variants(fifteen_million().heads, quick)
    }
    llama = decoders.llama(fifteen_million())
    dynamic = Dynamic(llama)
    others: dict[str, Decoder] = {"Llama, DynamicCache": dynamic, "Llama, StaticCache": Static(dynamic)}
    left_out = decoders.left_out("llama.cpp", llama_cpp.NEEDS)
    if left_out:
        yield ours, others, left_out
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "llama.gguf"
        llama_cpp.write_gguf(llama, file)
        with llama_cpp.session(file, capacity, torch.get_num_threads()) as session:
            yield ours, {**others, "llama.cpp float32": session}, []


def stepping(decoder: Decoder, steps: int) -> Contender:
    """Seconds per token over `steps` tokens."""
    return lambda: decoder.decode(steps)


class Dynamic:
    """A Hugging Face model with a cache that grows; `generate()` as users call it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.cache = self.new_cache()
        self.ids_T = torch.empty(0, dtype=torch.long)

    def new_cache(self) -> Cache:
        """An empty cache that grows."""
        return DynamicCache(config=self.model.config)

    def extend(self, ids_T: Tensor) -> None:
        """See `Decoder`."""
        self.ids_T = ids_T
        with torch.inference_mode():
            while (held := self.cache.get_seq_length()) < len(ids_T) - 1:
                end = min(held + CHUNK, len(ids_T) - 1)
                self.model(input_ids=ids_T[None, held:end], cache=self.cache, use_cache=True, logits_to_keep=1)

    def decode(self, steps: int) -> float:
        """See `Decoder`."""
        seconds = generated(self.model, self.ids_T, self.cache, steps)
        self.cache.crop(len(self.ids_T) - 1 - self.cache.get_seq_length())
        return seconds


class Ours(Dynamic):
    """Our decoder with the row cache that a plain `generate()` ends up with."""

    model: TwofoldForCausalLM

    def new_cache(self) -> Cache:
        """An empty row cache that grows."""
        return self.model.model.new_cache()


class Static:
    """The same Llama with a static cache, which is made as long as it must be: attention reads all of it."""

    def __init__(self, source: Dynamic) -> None:
        self.source = source

    def extend(self, ids_T: Tensor) -> None:
        """See `Decoder`. The source holds the context already, and its keys and values are copied."""
        assert len(ids_T) == len(self.source.ids_T)

    def decode(self, steps: int) -> float:
        """See `Decoder`."""
        cache = StaticCache(config=self.source.model.config, max_cache_len=len(self.source.ids_T) + steps + 1)
        for layer, held in zip(cache.layers, self.source.cache.layers, strict=True):
            layer.update(held.keys, held.values)
        return generated(self.source.model, self.source.ids_T, cache, steps)


def generated(model: PreTrainedModel, ids_T: Tensor, cache: Cache, steps: int) -> float:
    """Seconds per token of a greedy `generate()` by `steps` tokens after the first, which reads the last of `ids_T`."""
    clock = Clock()
    model.generate(
        ids_T[None],
        attention_mask=torch.ones_like(ids_T)[None],
        cache=cache,
        max_new_tokens=steps + 1,
        min_new_tokens=steps + 1,
        do_sample=False,
        streamer=clock,
    )
    return 1 / clock.decode_tokens_per_second
