"""Records as benches write them, made by hand."""

from twofold.bench.record import BenchRecord, Machine, Row


def machine(**others):
    return Machine(
        **{
            "read_bandwidth_gbs": 40.0,
            "fma_peak_gflops": 200.0,
            "processor": "Some <Processor>",
            "threads": 2,
            "isa": "avx2",
            "cores": 2,
            "memory_bytes": 2**34,
            "platform": "Linux",
            "versions": {"twofold": "1", "python": "3.11", "torch": "2", "x-transformers": None},
            "commit": None,
            "load_average": (0.25, 1.5),
            **others,
        }
    )


def record(bench="generate", rows=None, **others):
    made = {"machine": machine(), "repeats": 3, "quick": True, "command": f"twofold bench {bench}", **others}
    return BenchRecord(bench=bench, rows=tuple(generate_rows() if rows is None else rows), **made)


def generate_rows(intercept=2.0, ours=1e-3, theirs=4e-3, bytes_per_token=4_000):
    """K=V against one alternative at three contexts: times on straight lines, in milliseconds per token of context."""
    return [
        Row(
            name=f"generate/15M/K=V/{context}",
            variant="K=V",
            context=context,
            milliseconds=intercept + ours * context,
            alternative="Llama",
            alternative_milliseconds=intercept + theirs * context,
            ratio=(intercept + theirs * context) / (intercept + ours * context),
            spread=0.125,
            roof_fraction=0.5,
            bytes=1_000_000 + bytes_per_token * context,
            tokens_per_second=100.0,
        )
        for context in (500, 1_000, 3_000)
    ]


def memory_rows():
    return [
        Row(name="memory/tiny/QKV/64/float32", variant="QKV", context=64, bytes=2**21, resident_bytes=2**21 + 2**15),
        Row(
            name="memory/tiny/K=V/64/float32",
            variant="K=V",
            context=64,
            bytes=2**20,
            resident_bytes=2**20,
            alternative="QKV",
            ratio=2.03,
        ),
    ]


def limit_rows():
    keys = {"parameters": 1_000, "resident_bytes": 2**29, "bytes": 2**20}
    return [
        Row(name=f"memory/15M/{variant}/limit-1/float32", variant=variant, context=context, **keys)
        for variant, context in (("QKV", 3_072), ("K=V MQA", 40_960))
    ]
