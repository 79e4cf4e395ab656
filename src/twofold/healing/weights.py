"""Which weights learn: all, those of attention, or adapters beside the projections, which are merged at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from twofold.attention.projections import Projections
from twofold.environment import package_version

ATTENTION = ("attention", "self_attn", "attn")
"""What the attention of a block is called, here and in transformers' families."""
ADAPTER = "healing"
SCALE = 2.0
"""An adapter's output is scaled by α / R, with α = 2 R."""


@dataclass(frozen=True)
class Learning:
    """How many numbers learn, of how many in all; adapters not counted in all."""

    trained: int
    parameters: int


@contextmanager
def learning(model: PreTrainedModel, train: str, lora: int, seed: int) -> Iterator[Learning]:
    """While the block lasts, only the chosen weights of `model` require gradients; `train` is "attention" or "all".

    With `lora`, adapters of that rank learn instead: on every matrix of the seam (Hu et al. 2021, arXiv 2106.09685),
    drawn by `seed`, and of every projection in attention for a model of another family. A matrix that serves several
    roles has one adapter, which serves the same roles. When the block ends well, they are merged into the matrices, and
    the model is what it was but for their values. Raises ValueError where nothing would learn, or peft is missing.
    """
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.requires_grad_(False)
    if lora:
        add_adapters(model, lora, seed)
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(train == "all" or not set(ATTENTION).isdisjoint(name.split(".")))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if not trained:
        raise ValueError(
            f"a {model.config.model_type!r} model has no modules called {', '.join(ATTENTION)}: give --train all"
        )
    yield Learning(trained, parameters)
    if lora:
        merge_adapters(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(before[name])


def add_adapters(model: PreTrainedModel, rank: int, seed: int = 0) -> None:
    """Put an adapter of that rank beside every matrix of the seam, in place. It adds 0 until it has learnt."""
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    names = projection_names(model)
    if not names:
        raise ValueError(f"{model.config.model_type!r} has no linear projections to put adapters on: leave --lora out")
    config = LoraConfig(r=rank, lora_alpha=round(SCALE * rank), lora_dropout=0.0, target_modules=names)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, ADAPTER)


def require_peft() -> None:
    """Raise ValueError where the package that makes adapters is missing."""
    if package_version("peft") is None:
        raise ValueError("adapters (--lora) need the package peft: pip install 'twofold[heal]'")


def merge_adapters(model: nn.Module) -> None:
    """Add every adapter to its matrix, and take it away: the model is as it was but for the values of the matrices."""
    from peft.tuners.lora import LoraLayer

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLayer):
                merged: Any = child
                merged.merge()
                setattr(parent, name, merged.get_base_layer())
    for left in ("peft_config", "_hf_peft_config_loaded"):
        model.__dict__.pop(left, None)


def projection_names(model: nn.Module) -> list[str]:
    """The linear layers of the seam by their full names; of another family's attention, where there is no seam."""
    seams = [name for name, module in model.named_modules() if isinstance(module, Projections)]
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if seams:
        return [name for name in linear if any(name.startswith(f"{seam}.") for seam in seams)]
    return [name for name in linear if not set(ATTENTION).isdisjoint(name.split("."))]
