"""What this process holds of the machine's memory, as Linux counts it, and limits on it. No torch."""

from __future__ import annotations

from pathlib import Path

_KIB = 1024


def resident_bytes() -> int:
    """Bytes that this process holds in memory now (VmRSS)."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """The most that it held since its start or `forget_peak` (VmHWM)."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak begin again at what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def available_bytes() -> int:
    """Bytes that new work can take on this machine without swapping (MemAvailable)."""
    return _kib("/proc/meminfo", "MemAvailable")


def cap(limit: int) -> None:
    """Refuse this process private memory beyond a resident size of `limit` bytes.

    Linux limits private memory by its size (RLIMIT_DATA), touched or not: the limit is what the process has of it
    already, and what is left from its resident size up to `limit`. Memory that it has and did not touch yet can still
    become resident: `peak_resident_bytes` tells.
    """
    import resource

    left = max(0, limit - resident_bytes())
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + left,) * 2)


def check_linux() -> None:
    """Raise ValueError where none of this is known."""
    if not Path("/proc/self/status").is_file():
        raise ValueError("resident memory is read from Linux's /proc, and this system has none: run this on Linux")


def _status(name: str) -> int:
    return _kib("/proc/self/status", name)


def _kib(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    value = next(line for line in lines if line.startswith(f"{name}:"))
    return int(value.split()[1]) * _KIB
