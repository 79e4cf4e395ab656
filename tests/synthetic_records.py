"""Run records with chosen numbers, for tests of what is made from records."""

import math
from collections.abc import Sequence

from twofold.study.record import (
    CacheRecord,
    CurvePoint,
    DocumentRecord,
    Environment,
    RunRecord,
    Sample,
    Speed,
    Validation,
)
from twofold.study.results import CorpusRecord, Results, build_results

SIZES = (1009, 2003, 1511, 4001, 701, 3001, 907, 2503, 1301, 5003, 1709)  # bytes of each held-out document
NAMES = tuple(f"package/module_{i}.py" for i in range(len(SIZES)))


def synthetic_record(
    variant: str,
    bits_per_byte: float | Sequence[float],
    *,
    seed: int = 0,
    bytes_per_token: int = 512,
    names: Sequence[str] = NAMES,
    sizes: Sequence[int] = SIZES,
    parameters: dict[str, int] | None = None,
    sample: Sample | None = None,
    text: str = "",
) -> RunRecord:
    """A record whose documents score `bits_per_byte` (one number for all, or one each).

    `text` is put into every field that holds free text, but not the documents' names.
    """
    each = [bits_per_byte] * len(sizes) if isinstance(bits_per_byte, int | float) else list(bits_per_byte)
    documents = tuple(
        DocumentRecord(name=name, nats=bits * size * math.log(2), tokens=size + 1, bytes=size)
        for name, size, bits in zip(names, sizes, each, strict=True)
    )
    return RunRecord(
        variant=variant + text,
        seed=seed,
        parameters=parameters or {"total": 762_147, "attention": 262_144, "mlp": 500_003},
        validation=_validation(documents),
        cache=_cache(bytes_per_token, tokens=257),
        speed=Speed(train_tokens_per_second=18_013, decode_tokens_per_second=211, wall_seconds=97),
        environment=_environment(text),
        configuration={"model": {"width": 131, "layers": 3, "note": text}, "training": {"tokens": 1_000_003}},
        sample=sample or Sample(prompt="def f(x):" + text, text="\n    return x" + text),
        curve=_curve(documents),
        documents=documents,
    )


def synthetic_results(
    records: Sequence[RunRecord], *, bigram: float = 3.61, text: str = "", baseline: str | None = None
) -> Results:
    """Results of these records, from a study with a made-up corpus."""
    return build_results(
        records,
        study="synthetic" + text,
        command="twofold study run synthetic" + text,
        created="2026-01-02T03:04:05+00:00" + text,
        corpus=CorpusRecord(
            name="made-up" + text, sha256="0f" * 32 + text, documents=113, bytes=1_000_003, held_out_bytes=27_649
        ),
        bigram_bits_per_byte=bigram,
        baseline=baseline,
    )


def _validation(documents: Sequence[DocumentRecord]) -> Validation:
    nats = math.fsum(document.nats for document in documents)
    tokens, size = (sum(getattr(document, unit) for document in documents) for unit in ("tokens", "bytes"))
    return Validation(
        loss=nats / tokens,
        bits_per_byte=nats / math.log(2) / size,
        perplexity=math.exp(nats / tokens),
        tokens=tokens,
        bytes=size,
    )


def _cache(bytes_per_token: int, tokens: int) -> CacheRecord:
    used = bytes_per_token * tokens
    return CacheRecord(
        tokens=tokens,
        bytes_formula=used,
        bytes_used=used,
        bytes_reserved=used * 5 // 4,
        bytes_per_token=bytes_per_token,
    )


def _environment(text: str) -> Environment:
    return Environment(
        twofold="0.1.0" + text,
        python="3.11.2" + text,
        torch="2.13.0" + text,
        transformers="5.24.0" + text,
        platform="Linux" + text,
        processor="a processor" + text,
        threads=2,
        device="cpu" + text,
        commit="c0ffee" + text,
    )


def _curve(documents: Sequence[DocumentRecord]) -> tuple[CurvePoint, ...]:
    end = _validation(documents).loss
    return tuple(CurvePoint(tokens=37_003 * i, loss=end + 3 / (1 + i)) for i in range(1, 29))
