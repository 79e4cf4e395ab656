"""Training steps: forward, backward and AdamW, at equal sizes and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twofold.bench import decoders, work
from twofold.bench.record import Machine, Row
from twofold.bench.sizes import Effort, sized
from twofold.bench.timing import Contender, Watch, interleaved, rows, timed
from twofold.models.architecture import Architecture


class Load(NamedTuple):
    """A model's name, its block, and the batch that one step sees."""

    size: str
    block: str
    sequences: int
    tokens: int


LOADS = (
    Load("tiny", "modern", 16, 256),
    Load("tiny", "paper", 16, 256),
    Load("15M", "modern", 4, 256),
    Load("15M", "paper", 4, 256),
)
QUICK_LOADS = (Load("tiny", "modern", 4, 128), Load("tiny", "paper", 4, 128))


def measure(effort: Effort, machine: Machine, watch: Watch) -> tuple[list[Row], list[str]]:
    """A row for each model and alternative, and lines on what was left out."""
    loads = QUICK_LOADS if effort.quick else LOADS
    found: list[Row] = []
    for number, load in enumerate(loads):
        watch(number, len(loads), f"{load.size}, {load.block} block")
        found += _rows(load, effort, machine)
    watch(len(loads), len(loads), "")
    return found, decoders.left_out("x-transformers", decoders.X_TRANSFORMERS)


def _rows(load: Load, effort: Effort, machine: Machine) -> list[Row]:
    arch = sized(load.size, block=load.block, dropout=0.0, positions=load.tokens)
    ids_BT = decoders.random_ids(arch, load.sequences, load.tokens + 1)
    models = dict(_models(arch))
    times = interleaved({name: step(model, ids_BT) for name, model in models.items()}, effort.repeats)
    roof = machine.roof_seconds(*work.training_step(arch, load.sequences, load.tokens))
    name = f"train/{load.size}/{load.block}/{load.sequences}x{load.tokens}/{arch.variant}"
    count = sum(parameter.numel() for parameter in models["ours"].parameters())
    tokens = load.sequences * load.tokens
    return rows(name, times, roof, tokens, variant=str(arch.variant), context=load.tokens, parameters=count)


def _models(arch: Architecture) -> Iterator[tuple[str, nn.Module]]:
    yield "ours", decoders.ours(arch)
    if arch.block == "paper":
        yield "transformers GPT-2", decoders.gpt2(arch)
        return
    yield "transformers Llama", decoders.llama(arch)
    if not decoders.left_out("x-transformers", decoders.X_TRANSFORMERS):
        yield "x-transformers", decoders.x_transformers(arch)


def step(model: nn.Module, ids_BT: Tensor) -> Contender:
    """One step of AdamW on the mean loss of the next tokens of `ids_BT` [B, T + 1]; the loss is computed alike."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, foreach=True)
    logits = _logits(model)

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(logits(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten()).backward()
        optimizer.step()

    return timed(once)


def _logits(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Token ids to logits, whatever else the model would return."""
    if hasattr(model, "config"):
        return lambda ids_BT: model(input_ids=ids_BT, use_cache=False).logits
    return model
