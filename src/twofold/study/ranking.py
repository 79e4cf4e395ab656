"""Variants ranked for a use: what fits, what was measured of their quality, what was only published, with reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from twofold.analysis import costs
from twofold.analysis.device_plan import Use, on_device
from twofold.analysis.devices import Device
from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.study import ranking_words as words
from twofold.study.evidence import Evidence, Records
from twofold.study.published import BASELINE, PERPLEXITIES, loss_difference
from twofold.study.ranking_record import Ask, Published, Ranked, Ranking, Source
from twofold.study.recommendation import Verdict, verdict_on
from twofold.variants.choices import Treatment

MEASURED_DTYPE = "float32"
"""A type without scales, as caches that studies measure have: shares of rows compare in it."""
_BY_VERDICT = {"meets": 0, "open": 1, "misses": 2}
_BY_SOURCE = {"baseline": 0, "measured": 0, "published": 1, "none": 2}


def candidates(model: Architecture, records: Records) -> tuple[str, ...]:
    """The notations that are ranked where none is given: the paper's for this many heads, and what was measured.

    A treatment of rotary positions is left out for a model without them: it would be the same model.
    """
    some = next((heads for heads in (model.heads // 4, model.heads // 2) if heads > 1 and model.heads % heads == 0), 0)
    grouped = (f"GQA-{some}", f"K=V GQA-{some}") if some else ()
    measured = [
        one for one in records.evidence if model.rotated_dims or not one.endswith(f" {Treatment.ON_READ.value}")
    ]
    return tuple(dict.fromkeys(("QKV", "K=V", "Q=K=V", *grouped, "MQA", "K=V MQA", *measured)))


def rank(
    models: Sequence[Architecture], baseline: Architecture, ask: Ask, records: Records, device: Device | None = None
) -> Ranking:
    """Rank `models`, which differ in their variant, for a use.

    What does not fit the memory comes last. With a quality budget, what is known to meet it comes first, then what is
    open, then what misses it; of equals, what was measured before what was only published before what nobody measured;
    then the smaller cache. Without one, the measured come first, the best of them leading. Raises ValueError as
    `costs.plan`.
    """
    entries = [_ranked(model, baseline, ask, records, device) for model in models]
    entries.sort(key=lambda entry: _order(entry, ask))
    placed = tuple(entry.model_copy(update={"rank": place}) for place, entry in enumerate(entries, start=1))
    return Ranking(
        ask=ask,
        headline=words.headline(placed, ask),
        ranked=placed,
        notes=words.notes(ask, records, published=any(entry.published for entry in placed)),
    )


def _order(entry: Ranked, ask: Ask) -> tuple[float, ...]:
    estimate = math.inf if entry.percent is None else entry.percent
    source = _BY_SOURCE[entry.source]
    fits = float(entry.fits is False)
    if ask.quality is None:
        return fits, source, estimate, entry.cache_bytes
    verdict = _BY_VERDICT[entry.verdict or "open"]
    return fits, verdict, source, float(estimate > ask.quality), entry.cache_bytes, estimate


def _ranked(model: Architecture, baseline: Architecture, ask: Ask, records: Records, device: Device | None) -> Ranked:
    variant = str(model.variant)
    plan = costs.plan(model, context=ask.context, dtype=ask.dtype, batch=ask.batch, memory=ask.memory_bytes)
    share, row_share = (_share(model, baseline, ask.context, dtype) for dtype in (ask.dtype, MEASURED_DTYPE))
    is_baseline = variant == str(baseline.variant)
    evidence, *others = [None] if is_baseline else (records.evidence.get(variant) or [None])
    published = None if is_baseline else _published(model, variant, ask)
    source: Source = "baseline" if is_baseline else "measured" if evidence else "published" if published else "none"
    percent, interval = _difference(is_baseline, evidence, published)
    verdict = _verdict(is_baseline, evidence, ask, too_weak=evidence is not None and evidence.is_weaker_than(row_share))
    held_back = words.held_back(evidence, model, row_share) if evidence else ""
    used = _time(model, ask, device)
    return Ranked(
        rank=0,
        variant=variant,
        parameters=plan.parameters,
        weight_bytes=plan.weight_bytes,
        cache_bytes=plan.cache_bytes_batch,
        cache_share=share,
        fits=None if ask.memory_bytes is None else plan.weight_bytes + plan.cache_bytes_batch <= ask.memory_bytes,
        source=source,
        percent=percent,
        interval=interval,
        verdict=verdict,
        evidence=evidence,
        others=tuple(other for other in others if other),
        published=published,
        device=used,
        reasons=(
            words.memory(plan, ask, share),
            words.quality(variant, ask, verdict, evidence, published, is_baseline=is_baseline, held_back=held_back),
            *((words.published_figure(published, ask),) if evidence and published else ()),
            *(words.also(other) for other in others if other),
            *((words.speed(used),) if used else ()),
        ),
        warnings=(
            *(words.caveats(evidence, model, row_share, plan.parameters) if evidence else ()),
            *words.published_doubts(published, model, plan.parameters),
            *words.positions(model, ask),
        ),
    )


def _share(model: Architecture, baseline: Architecture, context: int, dtype: str) -> float:
    """The share of the baseline's cache that a model has."""
    return costs.cache_bytes(model, context, dtype) / costs.cache_bytes(baseline, context, dtype)


def _time(model: Architecture, ask: Ask, device: Device | None) -> dict[str, Any] | None:
    if device is None:
        return None
    use = Use(ask.context, ask.batch, ask.dtype, ask.efficiency, ask.price_per_hour)
    return on_device(model, device, use).as_dict()


def _difference(
    is_baseline: bool, evidence: Evidence | None, published: Published | None
) -> tuple[float | None, tuple[float, float] | None]:
    if is_baseline:
        return 0.0, None
    if evidence:
        return evidence.percent, evidence.interval
    return (published.percent, None) if published else (None, None)


def _verdict(is_baseline: bool, evidence: Evidence | None, ask: Ask, *, too_weak: bool) -> Verdict | None:
    """By the study's interval alone; what was measured of a weaker sharing, or barely trained, can meet nothing."""
    if ask.quality is None:
        return None
    if is_baseline:
        return "meets"
    if evidence is None or evidence.untrained:
        return "open"
    found = verdict_on(ask.quality, evidence.percent, evidence.interval)
    return "open" if found == "meets" and too_weak else found


def _published(model: Architecture, variant: str, ask: Ask) -> Published | None:
    """The figure of the paper's model that is nearest in size; None where it has none of this variant."""
    size = costs.parameters(model)["total"]
    ratios = {name: abs(math.log(size / costs.parameters(architecture(name))["total"])) for name in PERPLEXITIES}
    preset = min(ratios, key=ratios.__getitem__)
    found = loss_difference(preset, variant) if ask.baseline == BASELINE else None
    if found is None:
        return None
    values = PERPLEXITIES[preset]
    return Published(
        model=preset,
        variant=variant,
        perplexity=values[variant],
        baseline_perplexity=values[BASELINE],
        percent=found,
    )
