"""Between separate projection matrices and one stacked matrix: exact, both ways."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from twofold.attention.projections import FUSED_NAME, Projections, require_stackable
from twofold.models.decoder import TwofoldForCausalLM
from twofold.variants.tensors import MATRIX_NAMES


def fuse(model: TwofoldForCausalLM) -> TwofoldForCausalLM:
    """A copy of `model` whose projections are stacked into one matrix per layer; bit-equal weights.

    Raises ValueError where a variant has none to stack.
    """
    return _converted(model, fused=True)


def separate(model: TwofoldForCausalLM) -> TwofoldForCausalLM:
    """A copy of `model` with one matrix per distinct projection; the inverse of `fuse`."""
    return _converted(model, fused=False)


def _converted(model: TwofoldForCausalLM, fused: bool) -> TwofoldForCausalLM:
    config = copy.deepcopy(model.config)
    config.fused_projections = fused
    state = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, Projections) and module.fused != fused:
            (_stack if fused else _unstack)(state, name, module)
    converted = TwofoldForCausalLM(config).to(model.device, model.dtype)
    converted.load_state_dict(state)
    return converted.train(model.training)


def _stack(state: dict[str, Tensor], name: str, module: Projections) -> None:
    require_stackable(module.variant, module.matrices)
    for kind in _kinds(module):
        parts = [state.pop(f"{name}.{MATRIX_NAMES[role]}.{kind}") for role in module.outputs]
        state[f"{name}.{FUSED_NAME}.{kind}"] = torch.cat(parts)


def _unstack(state: dict[str, Tensor], name: str, module: Projections) -> None:
    for kind in _kinds(module):
        parts = state.pop(f"{name}.{FUSED_NAME}.{kind}").split(list(module.outputs.values()))
        for role, part in zip(module.outputs, parts, strict=True):
            state[f"{name}.{MATRIX_NAMES[role]}.{kind}"] = part


def _kinds(module: Projections) -> tuple[str, ...]:
    return ("weight",) if not module.sizes.input_biases else ("weight", "bias")
