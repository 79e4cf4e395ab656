"""What needs a GPU: the Triton kernel against float64 and torch's attention, a training step, a generation.

    python tests/gpu_checks.py --record docs/results/gpu.json
    python tests/gpu_checks.py --quick

Exits 0 where everything holds, 1 where something does not, 2 without CUDA or Triton. Kernels are timed as CUDA graphs,
in turn with torch's attention over keys and values in two tensors, and the second-level cache is emptied before each.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from decode_steps import LAYOUTS, Case, make, reference, spans
from small_models import small_config
from twofold.environment import environment
from twofold.kernels import decode_triton
from twofold.kernels.decode import decode_attention
from twofold.models.decoder import TwofoldForCausalLM
from twofold.study.record import write_atomically
from twofold.variants.layout import RowLayout, cache_bytes

DEVICE = "cuda"
HEADS, HEAD_DIM = 16, 64
ROWS = {
    "QKV": (RowLayout.separate(HEAD_DIM), 16),
    "GQA-4": (RowLayout.separate(HEAD_DIM), 4),
    "MQA": (RowLayout.separate(HEAD_DIM), 1),
    "K=V": (RowLayout.shared(HEAD_DIM), 16),
    "K=V GQA-4": (RowLayout.shared(HEAD_DIM), 4),
    "K=V MQA": (RowLayout.shared(HEAD_DIM), 1),
    "MLA": (RowLayout.latent(512, 64), 1),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CONTEXTS, BATCHES = (8_192, 32_768, 131_072), (1, 8)
CACHE_BYTES = 2**28  # more than any second-level cache holds
ROUNDING = {"float32": 2e-6, "bfloat16": 2**-7}
"""Of the largest output: what an error may be where torch's own, of which twice is allowed, happens to be smaller."""
LAW_TOLERANCE = 2e-5  # of the largest output: float32 on tensor cores in three parts


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="write what was measured here, as JSON")
    parser.add_argument("--quick", action="store_true", help="only 8,192 rows of one sequence")
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds of each case")
    chosen = parser.parse_args()
    if chosen.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {chosen.repeats}")
    if chosen.record is not None and not chosen.record.parent.is_dir():
        parser.error(f"--record: there is no folder {chosen.record.parent}")
    return chosen


def missing() -> str | None:
    """Why nothing can be checked here, or None."""
    if not torch.cuda.is_available():
        return f"no CUDA device (torch {torch.__version__}): run this on a machine with an NVIDIA GPU"
    return None if decode_triton.AVAILABLE else "triton is not installed: pip install 'twofold[triton]'"


def laws() -> list[dict]:
    """Every layout and dtype with no option and with all, and as one compiled graph, against the definition."""
    everything = {
        "starts_B": torch.tensor([3, 0]),
        "lengths_B": torch.tensor([331, 120]),
        "window": 97,
        "softcap": 5.0,
        "frequencies": 10.0 ** -torch.linspace(0, 3, 5, dtype=torch.float64),
        "first_position": 100_003,
    }
    compiled = torch.compile(decode_attention, fullgraph=True)
    found = []
    for name, layout in LAYOUTS.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8):
            for per_group, positions in ((1, 1), (7, 3)):
                sizes = {"batch": 2, "groups": 3, "per_group": per_group, "positions": positions, "rows": 331}
                case = make(layout, **sizes, dtype=dtype, seed=1)
                for extra in ({}, everything):
                    asked = Case(case.query, case.heads, case.shared, {**case.options, **extra})
                    for attention in (decode_attention, *([compiled] if per_group == 7 and not extra else [])):
                        error = law_error(asked, attention)
                        title = f"{name} {dtype} {per_group}x{positions}{' everything' if extra else ''}"
                        title += " compiled" if attention is compiled else ""
                        found.append({"law": title, "error": error, "holds": error <= LAW_TOLERANCE})
    return found


def law_error(case: Case, attention) -> float:
    on_gpu = [None if part is None else part.to(DEVICE) for part in (case.query, case.heads, case.shared)]
    named = {name: part.to(DEVICE) if isinstance(part, torch.Tensor) else part for name, part in case.options.items()}
    wanted = reference(case)
    got = attention(*on_gpu, **named, path="triton").cpu().double()
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1))


def measured(name: str, dtype: str, context: int, batch: int, repeats: int) -> dict:
    layout, groups = ROWS[name]
    kind = DTYPES[dtype]
    made = torch.Generator(DEVICE).manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=DEVICE, dtype=kind, generator=made)

    query = normal(batch, HEADS, 1, layout.key_dim)
    heads = normal(batch, groups, context, layout.head_width)
    shared = normal(batch, context, layout.shared_width) if layout.shared_width else None
    key, value = two_tensors(layout, heads, shared)
    step = spans(layout)

    def ours() -> torch.Tensor:
        return decode_attention(query, heads, shared, **step, path="triton")

    def torchs() -> torch.Tensor:
        return fused(query, key, value)

    exact = torch.cat([fused(*(part[b : b + 1].double() for part in (query, key, value))) for b in range(batch)])
    error, torch_error = (largest(call().double() - exact) / largest(exact) for call in (ours, torchs))
    milliseconds, torch_milliseconds, ratio = compared(graphed(ours), graphed(torchs), repeats)
    size = cache_bytes(layout, groups, tokens=context, batch=batch, itemsize=kind.itemsize)
    return {
        "name": f"{name}/{context}/{dtype}" + (f"/batch-{batch}" if batch > 1 else ""),
        "milliseconds": milliseconds,
        "torch_milliseconds": torch_milliseconds,
        "ratio": ratio,
        "bytes": size,
        "bytes_per_second": size / milliseconds * 1e3,
        "call_microseconds": call_microseconds(ours),
        "error": error,
        "torch_error": torch_error,
        "holds": error <= max(2 * torch_error, ROUNDING[dtype]),
    }


def two_tensors(layout: RowLayout, heads: torch.Tensor, shared: torch.Tensor | None):
    """Keys and values as a cache of two tensors would have them: each contiguous."""
    key = heads[..., slice(*layout.key)]
    if shared is not None:
        rest = shared[:, None, :, slice(*layout.shared_key)]
        key = torch.cat([key, rest.expand(*key.shape[:3], -1)], dim=-1)
    return key.contiguous(), heads[..., slice(*layout.value)].clone(memory_format=torch.contiguous_format)


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """torch's attention in the layout that suits it best: the query heads of a group as query positions."""
    grouped = query.unflatten(1, (key.shape[1], -1)).squeeze(3)
    return F.scaled_dot_product_attention(grouped, key, value).flatten(1, 2).unsqueeze(2)


def largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max())


def graphed(call) -> torch.cuda.CUDAGraph:
    """A call as a graph, so that what is timed is the GPU's work and not the launching."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.inference_mode():
        graph.result = call()  # kept, so that its memory stays the graph's
    return graph


def compared(ours: torch.cuda.CUDAGraph, theirs: torch.cuda.CUDAGraph, repeats: int) -> tuple[float, float, float]:
    """Median milliseconds of both, and the median of their paired ratios."""
    flush = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    times: dict[torch.cuda.CUDAGraph, list[float]] = {ours: [], theirs: []}
    for number in range(-2, repeats):
        for graph in (ours, theirs) if number % 2 else (theirs, ours):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= 0:
                times[graph].append(begin.elapsed_time(end))
    ratios = [their / our for our, their in zip(times[ours], times[theirs], strict=True)]
    return statistics.median(times[ours]), statistics.median(times[theirs]), statistics.median(ratios)


def call_microseconds(call, calls: int = 50) -> float:
    """What one call costs the processor before the GPU gets it: wall time of calls that nobody waits for."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    with torch.inference_mode():
        for _ in range(calls):
            call()
    taken = time.perf_counter() - started
    torch.cuda.synchronize()
    return taken / calls * 1e6


def model_checks() -> list[dict]:
    """Training steps and a greedy generation on the GPU are those of the CPU, of a K=V and of an ordinary model."""
    found = []
    for variant in ("K=V GQA-2", "K=V MQA", "QKV"):
        torch.manual_seed(0)
        on_cpu = TwofoldForCausalLM(small_config(variant))
        on_gpu = TwofoldForCausalLM(small_config(variant)).to(DEVICE)
        on_gpu.load_state_dict(on_cpu.state_dict())
        ids = torch.randint(29, (3, 17), generator=torch.Generator().manual_seed(1))
        losses = [train(model, ids.to(model.device)) for model in (on_cpu, on_gpu)]
        apart = max(abs(a - b) for a, b in zip(*losses, strict=True))
        on_gpu.load_state_dict(on_cpu.state_dict())
        tokens = [generated(model, ids[:, :5].to(model.device)) for model in (on_cpu, on_gpu)]
        holds = apart < 1e-3 and losses[1][-1] < losses[1][0] and torch.equal(*tokens)
        found.append({"model": variant, "losses": losses[1], "apart": apart, "tokens_equal": torch.equal(*tokens)})
        found[-1]["holds"] = holds
    return found


def train(model: TwofoldForCausalLM, ids: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
    losses = []
    for _ in range(5):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def generated(model: TwofoldForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    out = model.eval().generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0)
    return out.cpu()


def main() -> int:
    chosen = options()
    if reason := missing():
        print(f"gpu_checks: {reason}", file=sys.stderr)
        return 2
    found = laws() + model_checks()
    for check in found:
        if not check["holds"]:
            print("DOES NOT HOLD", check, flush=True)
    print(f"{len(found)} laws and models, {sum(check['holds'] for check in found)} hold", flush=True)
    contexts, batches = (CONTEXTS[:1], BATCHES[:1]) if chosen.quick else (CONTEXTS, BATCHES)
    cases = []
    for sizes in ((name, dtype, s, b) for dtype in DTYPES for s in contexts for b in batches for name in ROWS):
        cases.append(case := measured(*sizes, chosen.repeats))
        print(
            f"{case['name']:34} {case['milliseconds']:9.4f} ms  ratio {case['ratio']:6.2f}  "
            f"{case['bytes_per_second'] / 1e9:7.0f} GB/s  call {case['call_microseconds']:5.0f} µs  "
            f"error {case['error']:.1e} (torch {case['torch_error']:.1e}){'' if case['holds'] else '  TOO LARGE'}",
            flush=True,
        )
    if chosen.record is not None:
        record = {"environment": environment(), "checks": found, "cases": cases}
        write_atomically(chosen.record, json.dumps(record, indent=2).encode() + b"\n")
    return 0 if all(check["holds"] for check in found + cases) else 1


if __name__ == "__main__":
    sys.exit(main())
