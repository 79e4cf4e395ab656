"""Triton without a GPU: kernels compiled for one that is only named. Run as a command, since it needs a process of
its own, without TRITON_INTERPRET.

    python tests/triton_machine.py 80      # compute capability 8.0; a JSON line for each kernel
"""

import json
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from decode_steps import make, spans
from twofold.kernels import decode_triton, triton_kernels
from twofold.kernels.step import Step
from twofold.variants.layout import RowLayout

ROWS = {
    "QKV": RowLayout.separate(64),
    "K=V": RowLayout.shared(64),
    "K=V 96": RowLayout.shared(96),
    "partial": RowLayout.partial(64, 16),
    "latent": RowLayout.latent(512, 64),
}
FLOAT, HALF, INT = torch.float32, torch.bfloat16, torch.int8
CASES = [
    *((name, FLOAT, FLOAT, 1, False) for name in ("QKV", "K=V")),
    *((name, HALF, HALF, 4, False) for name in ROWS),
    ("K=V", INT, HALF, 16, False),
    ("latent", FLOAT, FLOAT, 16, False),
    ("partial", INT, FLOAT, 16, True),
    ("latent", HALF, HALF, 3, True),
]
"""Layout, dtypes of rows and queries, query heads of a group, and whether every option is on."""
EVERYTHING = {
    "starts": torch.tensor([1, 2]),
    "lengths": torch.tensor([400, 500]),
    "window": 31,
    "softcap": 5.0,
    "frequencies": torch.ones(5),
}


OWN_TILES = ("%rows_NC", "%value_NC")  # names that the kernel gives to what it loads of a head's own part


class NamedGpu:
    """What Triton asks a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def step(name, rows_dtype, query_dtype, per_group, everything):
    sizes = {"batch": 2, "groups": 2, "per_group": per_group, "positions": 3 if everything else 1, "rows": 509}
    case = make(ROWS[name], **sizes, dtype=rows_dtype, seed=1)
    given = {
        "scale": 0.1,
        "softcap": 0.0,
        "first_position": 0,
        **spans(ROWS[name]),
        **(EVERYTHING if everything else {}),
    }
    scales = {"scales": case.options.get("scales_BGS"), "shared_scales": case.options.get("shared_scales_BS")}
    tensors = {"query": case.query.to(query_dtype), "heads": case.heads, "shared": case.shared}
    return Step(**{**dict.fromkeys(Step._fields), **tensors, **scales, **given})


def main() -> None:
    driver.set_active(NamedGpu(int(sys.argv[1])))
    for case in CASES:
        launch, _ = decode_triton.launch(step(*case), 132)
        partial = triton_kernels.partial_attention.warmup(grid=launch.grid, **launch.partial)
        merge = triton_kernels.merge.warmup(grid=launch.merge_grid, **launch.merge)
        lines = partial.asm["ttir"].splitlines()
        found = {
            "case": " ".join(str(part) for part in case),
            "row_loads": sum("tt.load" in line and line.lstrip().startswith(OWN_TILES) for line in lines),
            "shared_bytes": max(partial.metadata.shared, merge.metadata.shared),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
