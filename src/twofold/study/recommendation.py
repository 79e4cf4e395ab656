"""Which variant to take for a budget, drawn from the results alone; that they cannot say is an answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from twofold.study.contrast import MINIMUM_DOCUMENTS, NOTHING_IN_COMMON, OVER_DOCUMENTS
from twofold.study.record import Part
from twofold.study.results import Results
from twofold.study.statistics import Comparison, VariantSummary

Verdict = Literal["meets", "misses", "open"]
FEW_SEEDS = 5  # with fewer, Student's factor for 95 % is above 3


@dataclass(frozen=True)
class Budget:
    """What may be spent; at least one of the three.

    `cache`: measured bytes per token, at most. `quality`: bits per byte, at most. `within`: percent of the baseline's
    bits per byte that quality may lose to it; 0 asks for no loss.
    """

    cache: float | None = None
    quality: float | None = None
    within: float | None = None

    def __post_init__(self) -> None:
        if self.cache is None and not self.about_quality:
            raise ValueError("a budget names at least one of cache, quality and within")
        for name, least in (("cache", "above 0"), ("quality", "above 0"), ("within", "of at least 0")):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and (value > 0 or (name == "within" and value == 0))):
                raise ValueError(f"{name} must be a number {least}, not {value:g}")

    @property
    def about_quality(self) -> bool:
        """Whether it says how good is good enough; else the best is wanted that the cache allows."""
        return self.quality is not None or self.within is not None


class Advice(Part):
    """`answer` is `take` (then `variant` is the one), `cannot say` (then `candidates` are those that it lies between,
    the smallest cache first) or `none meets it` (then `nearest` is what comes closest).

    `reasons` are sentences drawn from the results, `helps` what would make the answer surer.
    """

    answer: Literal["take", "cannot say", "none meets it"]
    budget: Budget
    reasons: tuple[str, ...]
    helps: tuple[str, ...] = ()
    variant: str | None = None
    candidates: tuple[str, ...] = ()
    nearest: str | None = None


def advise(results: Results, budget: Budget) -> Advice:
    """The variant to take for a `budget`.

    With a word on quality, it is the one with the smallest cache whose whole 95 % interval meets it. With a cache
    alone, it is the best that fits, where every other that fits is told apart from it.
    """
    fitting = [e for e in results.summary if budget.cache is None or e.cache_bytes_per_token <= budget.cache]
    if not fitting:
        nearest = min(results.summary, key=_thrift)
        why = f"the smallest cache here is {nearest.label}'s, {nearest.cache_bytes_per_token:,.0f} bytes per token"
        return Advice(answer="none meets it", budget=budget, reasons=(why,), nearest=nearest.label)
    fitting.sort(key=_thrift)
    advice = _good_enough(results, budget, fitting) if budget.about_quality else _best(results, budget, fitting)
    return _only_if_trained(results, advice)


def _best(results: Results, budget: Budget, fitting: Sequence[VariantSummary]) -> Advice:
    leader = min(fitting, key=lambda entry: entry.bits_per_byte.mean)
    against = {e.label: results.comparison(e.label, leader.label) for e in fitting if e is not leader}
    rivals = [label for label, comparison in against.items() if not comparison.separable]
    fits = f"within {budget.cache:,.0f} bytes per token: {_listed([entry.label for entry in fitting])}"
    best = f"{leader.label} is the best of them: {leader.bits_per_byte.mean:.4f} bits per byte"
    if len(fitting) == 1:
        best = f"{leader.label} is the only one: {leader.bits_per_byte.mean:.4f} bits per byte"
    said = (fits, best, *(_words(comparison) for comparison in against.values()))
    if not rivals:
        # Where nobody else fits, the answer rests on no comparison, and no seed would change it.
        helps = _seeds(results, list(against.values())) if against else ()
        return Advice(answer="take", budget=budget, variant=leader.label, reasons=said, helps=helps)
    open_ones = [entry.label for entry in fitting if entry is leader or entry.label in rivals]
    why = f"{_listed(rivals)} cannot be told apart from {leader.label}; {open_ones[0]} has the smallest cache of these"
    helps = _to_decide(results, [against[label] for label in rivals])
    return Advice(answer="cannot say", budget=budget, candidates=tuple(open_ones), reasons=(*said, why), helps=helps)


def _good_enough(results: Results, budget: Budget, fitting: Sequence[VariantSummary]) -> Advice:
    judged = {entry.label: _judge(results, budget, entry) for entry in fitting}
    chosen = next((entry for entry in fitting if judged[entry.label][0] == "meets"), None)
    price = chosen.cache_bytes_per_token if chosen else math.inf
    cheaper = [e.label for e in fitting if judged[e.label][0] == "open" and e.cache_bytes_per_token < price]
    said = [reason for e in fitting if e.cache_bytes_per_token <= price for reason in judged[e.label][1]]
    helps = _to_decide(results, _evidence(results, budget, cheaper), cheaper)
    itself = chosen is not None and chosen.label == results.baseline and budget.quality is None
    if chosen and not (cheaper and itself):  # that the baseline is as good as itself is no finding
        if cheaper:
            said.append(f"{_listed(cheaper)} may do with less cache: the data cannot say")
        else:
            helps = _seeds(results, _evidence(results, budget, [chosen.label]), [] if itself else [chosen.label])
        return Advice(answer="take", budget=budget, variant=chosen.label, reasons=tuple(said), helps=helps)
    if cheaper:
        said.append(f"the data leave open whether {_listed(cheaper)} would do")
        candidates = (*cheaper, *([chosen.label] if chosen else []))
        return Advice(answer="cannot say", budget=budget, candidates=candidates, reasons=tuple(said), helps=helps)
    nearest = min(fitting, key=lambda entry: entry.bits_per_byte.mean)
    said.append(f"{nearest.label} comes nearest: {nearest.bits_per_byte.mean:.4f} bits per byte")
    return Advice(answer="none meets it", budget=budget, nearest=nearest.label, reasons=tuple(said))


def _judge(results: Results, budget: Budget, entry: VariantSummary) -> tuple[Verdict, list[str]]:
    """Whether a variant's interval meets what is asked of quality, with the numbers in words."""
    verdicts, reasons = [], []
    if budget.quality is not None:
        verdicts.append(verdict_on(budget.quality, entry.bits_per_byte.mean, entry.bits_interval))
        shown = _interval_words(entry.bits_interval, "")
        reasons.append(
            f"{entry.label}: {entry.bits_per_byte.mean:.4f} bits per byte ({shown}) "
            f"{_VERBS[verdicts[-1]]} {budget.quality:g}"
        )
    if budget.within is not None:
        level = _baseline(results).bits_per_byte.mean
        found = entry.difference_to_baseline
        allowed = budget.within / 100 * level
        verdicts.append("meets" if found is None else verdict_on(allowed, found.difference, found.interval))
        if found is None:
            reasons.append(f"{entry.label} is the baseline")
        else:
            bounds = found.interval and (100 * found.interval[0] / level, 100 * found.interval[1] / level)
            shown = f"95 % interval {bounds[0]:+.2f} to {bounds[1]:+.2f} %" if bounds else "no interval"
            told = f"{entry.label} against {found.b}: {100 * found.difference / level:+.2f} % ({shown})"
            reasons.append(f"{told} {_VERBS[verdicts[-1]]} {budget.within:g} %")
    worst = next(verdict for verdict in ("misses", "open", "meets") if verdict in verdicts)
    return worst, reasons


_VERBS = {"meets": "is within", "misses": "is beyond", "open": "may or may not be within"}


def verdict_on(limit: float, value: float, interval: tuple[float, float] | None) -> Verdict:
    """Whether a value is within a limit, for certain only by its whole interval; `open` without one."""
    if interval is None:
        return "open"
    if interval[1] <= limit and value <= limit:
        return "meets"
    return "misses" if interval[0] > limit else "open"


def _only_if_trained(results: Results, advice: Advice) -> Advice:
    """No advice to take what learnt less than counting pairs of bytes does, or is compared with such a baseline."""
    leant_on = {advice.variant, results.baseline if advice.budget.within is not None else None}
    untrained = [label for label in results.untrained if label in leant_on]
    if advice.answer != "take" or not untrained:
        return advice
    level = results.bigram_bits_per_byte
    why = f"{_listed(untrained)} did not learn more than a byte-bigram model knows ({level:.4f} bits per byte)"
    few = min(len(entry.seeds) for entry in results.summary) < FEW_SEEDS
    seeds = advice.helps or ((_more_seeds(results),) if few else ())
    return Advice(
        answer="cannot say",
        budget=advice.budget,
        candidates=(advice.variant,) if advice.variant else (),
        reasons=(*advice.reasons, why),
        helps=("more training tokens", *seeds),
    )


def _evidence(results: Results, budget: Budget, labels: Iterable[str]) -> list[Comparison]:
    if budget.within is None:
        return []
    entries = [entry for entry in results.summary if entry.label in labels]
    return [entry.difference_to_baseline for entry in entries if entry.difference_to_baseline]


def _to_decide(results: Results, evidence: Sequence[Comparison], labels: Iterable[str] = ()) -> tuple[str, ...]:
    """What would narrow intervals that leave it open, or move them apart."""
    helps = list(_seeds(results, evidence, labels))
    if not helps:
        helps.append(_more_seeds(results))
    if results.unfinished:
        helps.append(f"the {results.unfinished} runs that are not finished")
    return (*helps, "more training tokens, where variants part only later")


def _more_seeds(results: Results) -> str:
    fewest = min(len(entry.seeds) for entry in results.summary)
    return f"more seeds (here {fewest}): intervals shrink with their square root, and faster at first"


def _seeds(results: Results, evidence: Sequence[Comparison], labels: Iterable[str] = ()) -> tuple[str, ...]:
    """What one seed, or none in common, leaves unsaid."""
    methods = {comparison.method for comparison in evidence}
    named = [entry for entry in results.summary if entry.label in labels]
    alone = any(len(entry.seeds) == 1 for entry in named)
    helps = []
    if NOTHING_IN_COMMON in methods:
        helps.append("the same seeds for all variants")
    if OVER_DOCUMENTS in methods or alone:
        helps.append("more seeds: with one, intervals are over held-out documents and say nothing of other seeds")
    if any(comparison.interval is None and comparison.samples for comparison in evidence):
        helps.append(f"at least {MINIMUM_DOCUMENTS} held-out documents")
    elif not evidence and any(entry.bits_interval is None for entry in named):
        helps.append(f"at least {MINIMUM_DOCUMENTS} held-out documents, or, for older results, `twofold study report`")
    return tuple(helps)


def _baseline(results: Results) -> VariantSummary:
    return next(entry for entry in results.summary if entry.label == results.baseline)


def _thrift(entry: VariantSummary) -> tuple[float, float]:
    """The order of price: the smaller cache, and where caches are equal the better quality."""
    return entry.cache_bytes_per_token, entry.bits_per_byte.mean


def _words(comparison: Comparison) -> str:
    shown = _interval_words(comparison.interval, "+")
    return f"{comparison.a} against {comparison.b}: {comparison.difference:+.4f} bits per byte ({shown})"


def _interval_words(interval: tuple[float, float] | None, sign: str) -> str:
    return f"95 % interval {interval[0]:{sign}.4f} to {interval[1]:{sign}.4f}" if interval else "no interval"


def _listed(labels: Sequence[str]) -> str:
    *head, last = labels
    return f"{', '.join(head)} and {last}" if head else last
