"""Memory for rows: on large pages where the system has them, since rows are streamed."""

from __future__ import annotations

import torch

from twofold.kernels import native


def empty(*shape: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """`torch.empty`; on a CPU the system is asked for large pages before anything is written there.

    Where memory lies is then looked up every 2 MiB and not every 4 KiB. Linux alone is asked, and only with the native
    library; it gives what it has to spare, so that nothing depends on it.
    """
    made = torch.empty(*shape, dtype=dtype, device=device)
    real = type(made) is torch.Tensor and not torch.compiler.is_compiling()  # a traced tensor has no memory
    if made.is_cpu and real and native.AVAILABLE:
        native.library().twofold_use_large_pages(made.data_ptr(), made.untyped_storage().nbytes())
    return made
