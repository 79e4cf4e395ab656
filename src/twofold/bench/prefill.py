"""Prefill: a prompt goes through the model once, its rows are cached, and the last position gets logits."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from twofold.bench import decoders, work
from twofold.bench.record import Machine, Row
from twofold.bench.sizes import Effort, fifteen_million, variants
from twofold.bench.timing import Contender, Watch, interleaved, rows, timed

TOKENS = 2_048


def measure(effort: Effort, machine: Machine, watch: Watch) -> tuple[list[Row], list[str]]:
    """A row for each variant against transformers' Llama, which has the size of QKV."""
    names = variants(fifteen_million().heads, effort.quick)
    found: list[Row] = []
    for number, variant in enumerate(names):
        watch(number, len(names), variant)
        arch = fifteen_million(variant)
        ids_BT = decoders.random_ids(arch, 1, TOKENS)
        model, llama = decoders.ours(arch), decoders.llama(fifteen_million())
        contenders = {"ours": read(model, ids_BT), "transformers Llama": read(llama, ids_BT)}
        times = interleaved(contenders, effort.repeats)
        roof = machine.roof_seconds(*work.prefill(arch, TOKENS))
        name = f"prefill/15M/{variant}/{TOKENS}"
        found += rows(name, times, roof, TOKENS, variant=variant, context=TOKENS, parameters=model.num_parameters())
    watch(len(names), len(names), "")
    return found, []


def read(model: PreTrainedModel, ids_BT: Tensor) -> Contender:
    """One forward pass over all of `ids_BT` with an empty cache of the model's own kind."""

    def once() -> None:
        with torch.inference_mode():
            model(input_ids=ids_BT, use_cache=True, logits_to_keep=1)

    return timed(once)
