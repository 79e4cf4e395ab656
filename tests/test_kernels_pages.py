"""Memory on large pages: the system is asked for them, and nothing else changes."""

import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from twofold.kernels import native, pages

MIB = 2**20


def flags_at(address):
    """What the kernel says of the mapping that holds this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"nothing is mapped at {address:x}")


@pytest.mark.skipif(
    not (native.AVAILABLE and sys.platform == "linux" and Path("/sys/kernel/mm/transparent_hugepage").exists()),
    reason="no large pages to ask for",
)
def test_the_system_is_asked_for_large_pages():
    rows = pages.empty(3, 8 * MIB, dtype=torch.int8)
    assert "hg" in flags_at(rows.data_ptr() + rows.nbytes // 2)
    assert "hg" not in flags_at(torch.empty(40 * MIB, dtype=torch.int8).data_ptr() + 20 * MIB)


@pytest.mark.parametrize("numbers", [0, 1, 2**19 - 1, 2**19 + 7, 3 * 2**19 + 1])
def test_memory_is_as_torch_gives_it(numbers):
    rows = pages.empty(2, numbers, dtype=torch.float32)
    assert (rows.shape, rows.dtype, rows.is_contiguous()) == ((2, numbers), torch.float32, True)
    assert rows.untyped_storage().nbytes() == 8 * numbers
    assert bool((rows.fill_(3.0) == 3.0).all())


def test_tensors_without_memory_are_left_alone():
    assert pages.empty(2, 3, dtype=torch.float32, device="meta").is_meta
    with FakeTensorMode():
        assert pages.empty(2, 3 * MIB, dtype=torch.float32).shape == (2, 3 * MIB)
