"""FSDP2: each process keeps a part of every parameter, gradient and optimizer state, and gathers blocks as it goes.

Checkpoints hold whole tensors all the same, so that a run may go on sharded or not, and on any number of processes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from twofold.environment import device_type
from twofold.models.decoder import TwofoldForCausalLM
from twofold.training import processes


def shard(model: TwofoldForCausalLM) -> None:
    """Spread the model over all processes in place, block by block; each must give one of equal values."""
    mesh = init_device_mesh(device_type(), (processes.count(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers as whole tensors on the CPU, a tied one once. All processes must call it."""
    tensors = model.state_dict(keep_vars=True)  # a tied parameter is one object under two names
    whole = {id(tensor): tensor for tensor in tensors.values()}
    with torch.no_grad():
        whole = {key: _whole(tensor) for key, tensor in whole.items()}
    return {name: whole[id(tensor)] for name, tensor in tensors.items()}


def load_whole_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load what `whole_weights` gave into a model that is sharded; a tied tensor may be named once."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in weights:
                tensor.copy_(_as(tensor, weights[name]))


def whole_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state that the optimizer would have of a model that is not sharded. All processes must call it."""
    state = optimizer.state_dict()
    of_parameters = {
        number: {name: _whole(value) if isinstance(value, Tensor) else value for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": of_parameters}


def load_whole_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what `whole_optimizer_state` gave, or the optimizer of a model that is not sharded."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_parameters = {
        number: {
            # The count of steps has no parameter's shape and is not spread.
            name: _as(parameters[number], value) if value.shape == parameters[number].shape else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": of_parameters})


def _whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def _as(like: Tensor, whole: Tensor) -> Tensor:
    """The part of a whole tensor that this process has of `like`."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device, like.dtype), like.device_mesh, like.placements)
