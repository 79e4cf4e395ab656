"""The machine, and what it can do at best in the same run. Loads torch."""

from __future__ import annotations

import os

import torch

from twofold import environment
from twofold.bench.record import Machine
from twofold.kernels import native, roofline

PROBE_BYTES = 2**28
"""More than any processor keeps in its own caches."""
PACKAGES = ("transformers", "x-transformers", "llama-cpp-python")


def examine() -> Machine:
    """Measure read bandwidth and arithmetic peak, and say where."""
    known, loads = environment.environment(), _loads()  # the probes below are no load of others
    bandwidth, peak = roof()
    return Machine(
        read_bandwidth_gbs=bandwidth,
        fma_peak_gflops=peak,
        processor=str(known["processor"]),
        threads=torch.get_num_threads(),
        isa=native.isa() if native.AVAILABLE else None,
        cores=environment.cores(),
        memory_bytes=environment.memory_bytes(),
        platform=str(known["platform"]),
        versions={
            "twofold": str(known["twofold"]),
            "python": str(known["python"]),
            "torch": str(known["torch"]),
            **{name: environment.package_version(name) for name in PACKAGES},
        },
        commit=environment.commit(),
        load_average=loads,
    )


def roof() -> tuple[float | None, float | None]:
    """GB/s and GFLOP/s on torch's threads; None where the native library is missing."""
    if not native.AVAILABLE:
        return None, None
    return roofline.read_bandwidth(torch.ones(PROBE_BYTES // 4)), roofline.fma_peak()


def after(machine: Machine) -> Machine:
    """The same machine when the work is done, with the load average that it has then."""
    loads = _loads(machine.load_average[0] if machine.load_average else None)
    return machine.model_copy(update={"load_average": loads})


def _loads(before: float | None = None) -> tuple[float, float] | None:
    """Load average over one minute, before and now; None where the system does not tell."""
    try:
        now = os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
    return (now if before is None else before, now)
