"""What a ranking of variants holds: what was asked, and each variant with its costs, its evidence and its reasons."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from twofold.study.evidence import Evidence
from twofold.study.recommendation import Verdict
from twofold.study.record import Part

Source = Literal["baseline", "measured", "published", "none"]


class Ask(Part):
    """What a model is to do: sequences at once, tokens each, bytes of memory for weights and rows, and `quality`, the
    percent of the baseline's bits per byte that may be lost. The last five are None or 1 where nothing is asked.
    """

    context: int = Field(ge=1)
    batch: int = Field(default=1, ge=1)
    dtype: str = "bfloat16"
    baseline: str = "QKV"
    memory_bytes: int | None = Field(default=None, ge=1)
    quality: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    efficiency: float = 1.0
    price_per_hour: float | None = None


class Published(Part):
    """A figure of arXiv 2606.04032: of which of its models and variants, two perplexities, and by how many percent the
    loss exceeds the baseline's.
    """

    model: str
    variant: str
    perplexity: float
    baseline_perplexity: float
    percent: float


class Ranked(Part):
    """One variant, with its costs at the use, its evidence and the reasons for its place.

    `fits` is None where no memory was given, `verdict` where no quality was. Only measurements are judged: published
    figures leave the verdict `open`. `percent` is the difference to the baseline's bits per byte, of a published figure
    that of its loss. `evidence` is the study's own, `others` what weaker records say, `published` the paper's figure.
    `device` is a `DevicePlan`.
    """

    rank: int
    variant: str
    parameters: int
    weight_bytes: int
    cache_bytes: int
    cache_share: float
    fits: bool | None
    source: Source
    percent: float | None
    interval: tuple[float, float] | None
    verdict: Verdict | None
    evidence: Evidence | None
    others: tuple[Evidence, ...]
    published: Published | None
    device: dict[str, Any] | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


class Ranking(Part):
    """All variants, the best first: `headline` says what the first is worth, `notes` what holds for all."""

    ask: Ask
    headline: str
    ranked: tuple[Ranked, ...]
    notes: tuple[str, ...]
