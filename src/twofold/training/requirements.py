"""Whether this machine, and whoever launched this process, can train as the settings say."""

from __future__ import annotations

import importlib.util
import os

from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.utils import is_torch_bf16_gpu_available

from twofold.environment import device_type
from twofold.training import processes
from twofold.training.settings import TrainingSettings

LAUNCHERS_WISHES = {
    "ACCELERATE_MIXED_PRECISION": ("no", "training.precision"),
    "ACCELERATE_DYNAMO_BACKEND": ("no", "training.compile"),
    "ACCELERATE_USE_FSDP": ("false", "training.fsdp"),
    "ACCELERATE_USE_DEEPSPEED": ("false", "training.fsdp"),
}
"""What `accelerate launch` asks for through the environment: the value that asks for nothing, the setting that does."""


def check(settings: TrainingSettings) -> None:
    """Raise ValueError, with the reason, where training as the settings say cannot be done here."""
    device = device_type()
    _check_processes(settings)
    _check_launcher()
    if settings.precision == "float16" and device == "cpu":
        raise ValueError("training.precision is float16, which needs a GPU, and this is a CPU: use bfloat16 or float32")
    if settings.precision == "float16" and settings.fsdp:
        raise ValueError("training.fsdp does not go with float16, whose loss scale is not sharded: use bfloat16")
    if settings.precision == "bfloat16" and device != "cpu" and not is_torch_bf16_gpu_available():
        raise ValueError(
            f"training.precision is bfloat16, and this {device} device does not compute in it: use float16 or float32"
        )
    _check_gradients(settings)
    if settings.compile:
        _check_compiler(device)
    _check_reports(settings.report_to)


def _check_processes(settings: TrainingSettings) -> None:
    count = processes.count()
    if settings.batch % count:
        raise ValueError(
            f"training.batch is {settings.batch} windows over all processes, and there are {count} processes: make it "
            f"a multiple of {count}"
        )
    if settings.fsdp and count == 1:
        raise ValueError(
            "training.fsdp spreads a model over processes, and there is one: start `twofold train` with torchrun"
        )


def _check_gradients(settings: TrainingSettings) -> None:
    """Hooks see gradients only where blocks run as they are written, once, in one process, unscaled."""
    if not settings.gradients_every:
        return
    others = [name for name in ("gradient_checkpointing", "compile", "fsdp") if getattr(settings, name)]
    others += ["precision=float16"] if settings.precision == "float16" else []
    others += [f"{processes.count()} processes"] if processes.count() > 1 else []
    if others:
        raise ValueError(
            f"training.gradients_every does not go with {others[0]}, which hides or changes what reaches queries, keys "
            "and values: leave one of them out"
        )


def _check_launcher() -> None:
    for name, (nothing, setting) in LAUNCHERS_WISHES.items():
        asked = os.environ.get(name, nothing)
        if asked.lower() != nothing:
            raise ValueError(
                f"{name} is {asked!r}: the launcher only starts processes, and how to train stands in the settings, "
                f"here {setting}"
            )


def _check_compiler(device: str) -> None:
    if device == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler  # late: loading the compiler takes seconds
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler as error:
            raise ValueError("training.compile needs a C++ compiler on a CPU: install g++, or leave it off") from error
    elif device == "cuda" and importlib.util.find_spec("triton") is None:
        raise ValueError("training.compile needs Triton on a GPU: pip install triton, or leave it off")


def _check_reports(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ValueError(f"training.report_to: no {name!r}; there are {', '.join(INTEGRATION_TO_CALLBACK)}")
        if name not in get_available_reporting_integrations():
            raise ValueError(f"training.report_to: {name} is not installed here")
