"""Where a result was made: versions, machine, device, commit. Every record carries it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from twofold.version import __version__


def environment() -> dict[str, str | int | None]:
    """The birth certificate of a result: twofold, python, torch, transformers, platform, processor, threads, device,
    processes, commit. `threads` are torch's, `processes` those that a launcher started to work together; `commit` is
    None outside a git checkout. Loads torch.
    """
    import torch

    return {
        "twofold": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": package_version("transformers"),
        "platform": platform.platform(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": device(),
        "processes": process_count(),
        "commit": commit(),
    }


def package_version(name: str) -> str | None:
    """The installed version of a package, without importing it; None where it is absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name as its maker writes it, where the system tells, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), "") or platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use; fewer than the machine has in a container that is bound to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def process_count() -> int:
    """Processes that work together, by what their launcher says (`torchrun`, `accelerate launch`); 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def memory_bytes() -> int | None:
    """Physical memory in bytes; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def device_type() -> str:
    """The kind of device that models run on unless told otherwise: `cpu`, `cuda`, `mps`, … Loads torch."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def device() -> str:
    """The device with its name where it has one: `cpu`, `cuda (NVIDIA H200)`. Loads torch."""
    import torch

    kind = device_type()
    return f"cuda ({torch.cuda.get_device_name()})" if kind == "cuda" else kind


def commit() -> str | None:
    """The commit of the checkout that this code runs from, with `-dirty` where tracked files differ; else None.

    A package that was installed into some other repository's folder is not tracked there: that commit would lie.
    """
    here = Path(__file__)
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if tracked else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
