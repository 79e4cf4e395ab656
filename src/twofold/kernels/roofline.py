"""What this machine can do at best: the rate at which it reads memory, and its multiply-adds in registers.

Kernels are judged by their share of these, measured in the same run: both vary with the machine's other work.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from twofold.kernels import native


def read_bandwidth(numbers: Tensor, repeats: int = 15) -> float:
    """Median rate, in GB/s (10⁹), of reading a contiguous CPU tensor once, on torch's threads.

    Raises ValueError for a tensor that is not contiguous, on the CPU, and of whole float32 numbers, RuntimeError where
    the native library is missing.
    """
    size = numbers.numel() * numbers.element_size()
    if not numbers.is_contiguous() or not numbers.is_cpu or size == 0 or size % 4:
        raise ValueError(
            f"it takes a contiguous CPU tensor of some multiple of 4 bytes, not {size} on {numbers.device}"
        )
    probe, threads = native.library().twofold_read_bandwidth, torch.get_num_threads()
    return size / statistics.median(probe(numbers.data_ptr(), size // 4, threads) for _ in range(repeats)) / 1e9


def fma_peak(repeats: int = 15, rounds: int = 200_000) -> float:
    """Median rate, in GFLOP/s, of multiply-adds (two operations each) of float32 in registers, on torch's threads.

    Raises RuntimeError where the native library is missing.
    """
    library, threads = native.library(), torch.get_num_threads()
    seconds = statistics.median(library.twofold_fma_peak(rounds, threads) for _ in range(repeats))
    return library.twofold_flops_per_round() * rounds * threads / seconds / 1e9
