"""Decode attention by Triton kernels, for CUDA, as the CUDA side of the operator twofold::decode_attention.

Two launches: each program of the first reads one chunk of one sequence's rows for the queries of one group, the
second merges the chunks. Where a group has more queries than one program takes, the programs that read the same rows
run at the same time, and all but the first are served from the second-level cache as far as it reaches. Starts and
lengths are not checked on the device, which would wait for it: what lies outside the rows is taken as their border.

Without a GPU the kernels run in Triton's interpreter, for tests: set TRITON_INTERPRET=1 before Triton is imported.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twofold.kernels import direct
from twofold.kernels.decode_native import MOST_POSITIONS
from twofold.kernels.step import Step

AVAILABLE = find_spec("triton") is not None
"""Whether Triton is installed. It is imported by the first step that takes this path."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter stands in for a GPU, which takes tensors on a CPU."""
_MOST_COLUMNS = 512
WIDE_FLOAT_BYTES = 106_496
"""Shared memory of a program that multiplies float32 tiles of the most columns; others fit on every device."""
_LEAST_CAPABILITY = 8  # bfloat16 in tensor cores, and the oldest that Triton supports
_HALVES = (torch.bfloat16, torch.float16)
_DOT_LEAST = 16  # of each side of a product in tensor cores
_FEW_QUERIES = 2
"""In float32, which tensor cores do not take as it is, so few queries are multiplied without padding them to 16."""


class Launch(NamedTuple):
    """Both kernels' arguments by name, and their grids."""

    grid: tuple[int, int, int]
    partial: dict[str, Any]
    merge_grid: tuple[int]
    merge: dict[str, Any]


def attend(step: Step) -> Tensor:
    """The output [B, H, T, value width] in the query's dtype; `step` must have been checked and `obstacle` be None."""
    if torch.compiler.is_compiling():
        return torch.ops.twofold.decode_attention(*step)
    return _attend(*step)


def obstacle(step: Step) -> str | None:
    """Why Triton cannot do this step, or None."""
    query, heads, shared = step.query, step.heads, step.shared
    if not AVAILABLE:
        return "triton is not installed: pip install 'twofold[triton]'"
    if query.device != heads.device:
        return f"queries are on {query.device} and rows on {heads.device}"
    if query.is_cuda:
        if why_not := _device_obstacle(step):
            return why_not
    elif torch.compiler.is_compiling() or not (query.is_cpu and INTERPRETED):
        return f"Triton needs CUDA, and queries are on {query.device.type}"
    if query.shape[2] > MOST_POSITIONS:
        return f"{query.shape[2]} query positions are more than {MOST_POSITIONS}"
    if torch.float64 in (query.dtype, heads.dtype):
        return f"queries of {query.dtype} and rows of {heads.dtype} would be computed in float32"
    if (widest := max(_Tiles.of(step).columns)) > _MOST_COLUMNS:
        return f"a tile {widest} numbers wide is more than {_MOST_COLUMNS}"
    if heads.stride(3) != 1 or (shared is not None and shared.stride(2) != 1):
        return "the numbers of a row are not contiguous"
    return direct.obstacle(*step.tensors) or None


def _device_obstacle(step: Step) -> str | None:
    if torch.version.hip:
        return "the Triton kernels are written for NVIDIA's devices"
    device = torch.cuda.get_device_properties(step.query.device)
    if device.major < _LEAST_CAPABILITY:
        return f"compute capability {device.major}.{device.minor} is below {_LEAST_CAPABILITY}.0"
    tiles = _Tiles.of(step)
    wide = max(tiles.columns) == _MOST_COLUMNS and not tiles.half
    has = getattr(device, "shared_memory_per_block_optin", WIDE_FLOAT_BYTES)
    if wide and has < WIDE_FLOAT_BYTES:
        return f"so wide rows in float32 need {WIDE_FLOAT_BYTES} bytes of shared memory, and this device has {has}"
    return None


class _Tiles(NamedTuple):
    """How the rows are cut: sizes are powers of two."""

    first: int  # number of the own part where its tile begins
    one_tile: bool  # key and value come from the same tile
    columns: tuple[int, int, int]  # of the own part's tile, of the value's and of the shared part's
    dot: bool
    half: bool  # products of 16-bit numbers
    queries: int  # of a block, M
    rows: int  # of a tile, N

    @staticmethod
    def of(step: Step) -> _Tiles:
        key, value = step.key, step.value
        overlap = min(key[1], value[1]) > max(key[0], value[0])
        first, stop = (min(key[0], value[0]), max(key[1], value[1])) if overlap else key
        shared = 0 if step.shared_key is None else step.shared_key[1] - step.shared_key[0]
        own, of_value = _power(stop - first), _power(stop - first if overlap else step.value_dim)
        columns = (own, of_value, _power(shared))
        queries = step.query.shape[1] // step.heads.shape[1] * step.query.shape[2]
        half = _in_halves(step)
        dot = half or queries > _FEW_QUERIES
        width = own + (0 if overlap else of_value) + (columns[2] if shared else 0)
        # In float32, or with the angles of turned keys, more numbers of a tile would not fit into registers.
        numbers = 8192 if half else 4096 if step.frequencies is None else 2048
        rows = min(128, max(_DOT_LEAST, _floor_power(numbers // width)))
        most = max(_DOT_LEAST, min(64, (8192 if half else 4096) // max(columns)))
        block = min(most, _power(queries)) if dot else 1 << (queries - 1).bit_length()
        return _Tiles(first, overlap, columns, dot, half, block, rows)


def _in_halves(step: Step) -> bool:
    """Whether queries come in 16 bits that hold every number of the rows exactly; float32 serves elsewhere."""
    query, rows = step.query.dtype, step.heads.dtype
    if INTERPRETED and query == torch.bfloat16:  # the interpreter's products take its bits for an integer
        return False
    exact = rows == query or (rows == torch.int8 and query == torch.bfloat16)  # float16 is too narrow for their scales
    return query in _HALVES and exact and step.frequencies is None


def _power(number: int) -> int:
    """The power of two that holds `number`, at least what a product in tensor cores takes."""
    return max(_DOT_LEAST, 1 << (number - 1).bit_length()) if number else _DOT_LEAST


def _floor_power(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def launch(step: Step, processors: int) -> tuple[Launch, Tensor]:
    """The arguments of both kernels for `step` on a device of so many multiprocessors, and the output to be written."""
    query, heads, shared = step.query, step.heads, step.shared
    batch, query_heads, positions, _ = query.shape
    groups, rows = heads.shape[1:3]
    tiles = _Tiles.of(step)
    queries = query_heads // groups * positions
    blocks = -(-queries // tiles.queries)
    seen = rows if step.window is None else min(rows, step.window + positions - 1)
    # Four programs for each multiprocessor keep its memory busy; more partial results only have to be merged again.
    splits = max(1, min(-(-seen // tiles.rows), -(-4 * processors // (batch * groups * blocks))))
    turned, partners, bases, offsets = _turns(step, tiles.rows)
    results = (batch * query_heads * positions, splits)
    out = query.new_empty(batch, query_heads, positions, step.value_dim)
    sums, states = (query.new_empty(*results, size, dtype=torch.float32) for size in (step.value_dim, 1))
    maxima, weights = states, torch.empty_like(states)
    shared_strides = (0, 0) if shared is None else shared.stride()[:2]
    scales_strides = (0, 0, 0) if step.scales is None else step.scales.stride()
    shared_scales_strides = (0, 0) if step.shared_scales is None else step.shared_scales.stride()
    wide = max(tiles.columns) >= 512
    partial = {
        "queries": turned,
        "partners": partners,
        "heads": heads,
        "shared": shared,
        "scales": step.scales,
        "shared_scales": step.shared_scales,
        "starts": _contiguous(step.starts),
        "lengths": _contiguous(step.lengths),
        "bases": bases,
        "offsets": offsets,
        "sums": sums,
        "maxima": maxima,
        "weights": weights,
        "rows": rows,
        "window": step.window,
        **dict(zip(("heads_stride_B", "heads_stride_G", "heads_stride_S"), heads.stride(), strict=False)),
        **dict(zip(("shared_stride_B", "shared_stride_S"), shared_strides, strict=True)),
        **dict(zip(("scales_stride_B", "scales_stride_G", "scales_stride_S"), scales_strides, strict=True)),
        **dict(zip(("shared_scales_stride_B", "shared_scales_stride_S"), shared_scales_strides, strict=True)),
        "scale": float(step.scale),
        "softcap": float(step.softcap),
        "GROUPS": groups,
        "QUERIES": queries,
        "POSITIONS": positions,
        "KEY_START": step.key[0],
        "KEY_STOP": step.key[1],
        "VALUE_START": step.value[0],
        "VALUE_STOP": step.value[1],
        "SHARED_START": 0 if step.shared_key is None else step.shared_key[0],
        "SHARED_DIM": 0 if step.shared_key is None else step.shared_key[1] - step.shared_key[0],
        "FIRST": tiles.first,
        "ONE_TILE": tiles.one_tile,
        "CAPPED": step.softcap > 0,
        "DOT": tiles.dot,
        "HALF": tiles.half,
        "M": tiles.queries,
        "N": tiles.rows,
        "C": tiles.columns[0],
        "VALUE_C": tiles.columns[1],
        "SHARED_C": tiles.columns[2],
        "STAGES": 3 if tiles.half else 2 if step.frequencies is None and not wide else 1,
        "num_warps": 4 if not wide else 8 if tiles.half else 16,
    }
    merging = {
        "sums": sums,
        "maxima": maxima,
        "weights": weights,
        "out": out,
        "splits": splits,
        "DIM": step.value_dim,
        "K": 16 if wide else 64,
        "C": _power(step.value_dim),
    }
    return Launch((batch * groups, splits, blocks), partial, results[:1], merging), out


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _turns(step: Step, tile: int) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The queries and, where keys are turned on read, their partners [B, H, T, D] and the angles that rows meet.

    Row s of sequence b is turned by (s + first position − start) · frequency. The sequence's share of this is turned
    back in its queries. The rest is the base of a tile, [tiles, 2, D], and an offset in it, [N, 2, D], cosine and sine
    of each: a table of all rows would be read like another cache. Angles in float64.
    """
    if step.frequencies is None:
        return step.query.contiguous(), None, None, None
    query, pairs = step.query.float(), len(step.frequencies)
    device = query.device
    frequencies_D = torch.zeros(step.key_dim, dtype=torch.float64, device=device)
    frequencies_D[:pairs] = frequencies_D[pairs : 2 * pairs] = step.frequencies.double()
    start_B = torch.zeros(1, dtype=torch.int64, device=device) if step.starts is None else step.starts.clamp(min=0)
    angle_B11D = ((step.first_position - start_B).double()[:, None] * frequencies_D)[:, None, None]
    cos_B11D, sin_B11D = angle_B11D.cos().float(), angle_B11D.sin().float()
    partner = torch.cat([query[..., pairs : 2 * pairs], -query[..., :pairs], query[..., 2 * pairs :] * 0], dim=-1)
    turned = query * cos_B11D + partner * sin_B11D
    partner = partner * cos_B11D - query * sin_B11D
    tiles = max(1, -(-step.heads.shape[2] // tile))
    return (
        turned.contiguous(),
        partner.contiguous(),
        _cos_sin(torch.arange(tiles, device=device) * tile, frequencies_D),
        _cos_sin(torch.arange(tile, device=device), frequencies_D),
    )


def _cos_sin(position_P: Tensor, frequencies_D: Tensor) -> Tensor:
    """[P, 2, D] in float32, computed in float64."""
    angle_PD = position_P.double()[:, None] * frequencies_D
    return torch.stack([angle_PD.cos(), angle_PD.sin()], dim=1).float()


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; threads where the interpreter stands in for one."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return torch.get_num_threads()


def _attend(*arguments: Any) -> Tensor:
    from twofold.kernels import triton_kernels

    step = Step(*arguments)
    launched, out = launch(step, _processors(step.query.device))
    with torch.cuda.device_of(step.query):
        triton_kernels.partial_attention[launched.grid](**launched.partial)
        triton_kernels.merge[launched.merge_grid](**launched.merge)
    return out


_CUDA_SIDE = torch.library.Library("twofold", "FRAGMENT")
_CUDA_SIDE.impl("decode_attention", _attend, "CUDA")
