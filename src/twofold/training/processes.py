"""The processes that train one model together, as `torchrun` or `accelerate launch` start them; else there is one."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from accelerate import PartialState

from twofold.environment import device_type
from twofold.environment import process_count as count

Made = TypeVar("Made")


def is_first() -> bool:
    """Whether this is the process that writes; true where there is only one."""
    return os.environ.get("RANK", "0") == "0"


def join() -> None:
    """Meet the other processes; nothing where there are none, or where they have met already."""
    if count() > 1 and not dist.is_initialized():
        PartialState(**({"cpu": True, "backend": backend()} if device_type() == "cpu" else {}))
        atexit.register(dist.destroy_process_group)


def backend() -> str | None:
    """How processes talk: gloo between CPUs, elsewhere what torch takes for the device; None where one is alone."""
    return "gloo" if count() > 1 and device_type() == "cpu" else None


def wait() -> None:
    """Go on when all processes have come here."""
    if count() > 1:
        dist.barrier()


def from_first(make: Callable[[], Made]) -> Made:
    """What `make` gives in the first process, for all of them; the others do not call it."""
    if count() == 1:
        return make()
    made = [make() if is_first() else None]
    dist.broadcast_object_list(made, src=0)
    return made[0]  # type: ignore[return-value]  # None stands only where the first process's has not come yet
