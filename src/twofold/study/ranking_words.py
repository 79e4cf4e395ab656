"""The sentences of a ranking, each drawn from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twofold.analysis import costs
from twofold.analysis.costs import Plan
from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.study.evidence import Evidence, Records
from twofold.study.published import SOURCE, WEAKNESSES, doubts
from twofold.study.ranking_record import Ask, Published, Ranked
from twofold.study.recommendation import Verdict, verdict_on
from twofold.variants.layout import SCALE_BYTES

MUCH_SMALLER = 10
"""A measured model with fewer than one in so many of the asked one's parameters is warned of."""
SAME_SIZE = 1.1
"""Two models whose parameters differ by a larger factor are of different sizes."""
_MIB = 2**20


def headline(ranked: Sequence[Ranked], ask: Ask) -> str:
    """What the first of a ranking is worth."""
    first, *others = (entry for entry in ranked if entry.fits is not False or entry is ranked[0])
    if first.fits is False:
        return f"None fits: {first.variant}, the first, needs {_mib(first.weight_bytes + first.cache_bytes)} MiB."
    if ask.quality is None:
        return _leader(first, others)
    if first.verdict == "meets" and first.source == "measured":
        return f"{first.variant}: the smallest cache that met the quality budget where it was measured."
    also_meet = [entry.variant for entry in others if entry.verdict == "meets"]
    if also_meet:
        met = " and ".join(also_meet)
        return f"{first.variant}, the baseline itself: {met} met the quality budget too, with no smaller cache."
    if first.verdict == "meets":
        return f"{first.variant}, the baseline itself: no other variant that fits is known to meet the quality budget."
    if first.verdict == "misses":
        return "None that fits met the quality budget where it was measured."
    return (
        f"The data cannot say: no variant that fits is known to meet the budget; {first.variant} is the first to try."
    )


def _leader(first: Ranked, others: Sequence[Ranked]) -> str:
    """Who leads without a quality budget, and who is not told apart from the baseline."""
    end = "no quality budget was given."
    measured = [entry for entry in (first, *others) if entry.source == "measured"]
    if not measured:
        fitting = "" if first.fits is None else " of those that fit"
        return f"Nothing was measured{fitting}: {first.variant} stands first ({first.source}); {end}"
    alike = [entry.variant for entry in measured if not _told_apart(entry)]
    if first.variant in alike:
        return f"{first.variant} stands first (measured), not told apart from the baseline; {end}"
    if first.source == "baseline" and alike:
        return f"{first.variant} stands first (baseline), and {' and '.join(alike)} not told apart from it; {end}"
    return f"{first.variant} leads by quality ({first.source}); {end}"


def _told_apart(entry: Ranked) -> bool:
    """Whether an interval without 0, of models that learnt enough, parts it from the baseline."""
    trained = entry.evidence is not None and not entry.evidence.untrained
    return trained and entry.interval is not None and not entry.interval[0] <= 0 <= entry.interval[1]


def memory(plan: Plan, ask: Ask, share: float) -> str:
    """The memory that a variant needs, and whether it is there."""
    needed = plan.weight_bytes + plan.cache_bytes_batch
    said = (
        f"{_mib(plan.weight_bytes)} MiB of weights and {_mib(plan.cache_bytes_batch)} MiB of cache, "
        f"{_share(share)} of {ask.baseline}'s"
    )
    if ask.memory_bytes is None:
        return said
    if needed <= ask.memory_bytes:
        most = f"sequences that would fit: {plan.sequences_that_fit:,}"
        return f"{said}: fits in {_mib(ask.memory_bytes)} MiB; {most}"
    return f"{said}: {_mib(needed - ask.memory_bytes)} MiB more than the {_mib(ask.memory_bytes)} MiB there are"


def quality(
    variant: str,
    ask: Ask,
    verdict: Verdict | None,
    evidence: Evidence | None,
    published: Published | None,
    *,
    is_baseline: bool,
    held_back: str = "",
) -> str:
    """What is known of a variant's quality, and how it stands to the budget; `held_back` as `held_back` says it."""
    if is_baseline:
        return f"{variant} is what the others are compared with"
    if evidence:
        return f"measured: {_difference(evidence)}{_against(ask, verdict, evidence, held_back)}; {_where(evidence)}"
    if published:
        return published_figure(published, ask)
    return f"no record and no published figure says what {variant} costs: train it with `twofold study run`"


def published_figure(published: Published, ask: Ask) -> str:
    """What the paper reports, and that it decides nothing."""
    beyond = "" if ask.quality is None else f", which cannot show whether it is within {ask.quality:g} %"
    return (
        f"published, not measured here: perplexity {published.perplexity:g} against {published.baseline_perplexity:g}, "
        f"{published.percent:+.2f} % of the loss, no interval{beyond} ({SOURCE}, its {published.model} model)"
    )


def held_back(evidence: Evidence, model: Architecture, share: float) -> str:
    """Why what was measured decides nothing for the asked model, in half a sentence; empty where it does."""
    if evidence.untrained:
        return f"{' and '.join(evidence.untrained)} learnt no more than a byte-bigram model knows"
    if evidence.is_weaker_than(share):
        heads = "" if evidence.heads is None else f" ({evidence.heads} query heads there, {model.heads} here)"
        return f"the sharing was weaker there{heads}"
    return ""


def also(evidence: Evidence) -> str:
    """What a weaker record says of the same variant."""
    return f"also measured: {_difference(evidence)}; {_where(evidence)}"


def speed(device: dict[str, Any]) -> str:
    """The time of a step at best."""
    decode, price = device["decode"], device["price_per_million_tokens"]
    cost = "" if price is None else f", {price:.3g} per million tokens"
    holds = "" if device["fits"] else ", if it fitted its memory"
    return (
        f"at best {1_000 * decode['seconds']:,.3g} ms per step on {device['device']}, bound by {decode['bound']}: "
        f"{device['tokens_per_second']:,.0f} tokens per second{cost}{holds}"
    )


def caveats(evidence: Evidence, model: Architecture, share: float, parameters: int) -> tuple[str, ...]:
    """Why a measurement may not carry over to the asked model."""
    found = []
    if evidence.untrained:
        found.append(f"{' and '.join(evidence.untrained)} learnt no more there than a byte-bigram model knows")
    if parameters >= MUCH_SMALLER * evidence.parameters:
        found.append(
            f"measured on a model {parameters / evidence.parameters:,.0f} times smaller, {evidence.parameters:,} "
            f"parameters against {parameters:,}: no promise for this one"
        )
    if evidence.is_weaker_than(share):
        heads = "" if evidence.heads is None else f" with {evidence.heads} query heads, here {model.heads}"
        found.append(
            f"measured{heads}: there it kept {_share(evidence.cache_share)} of the baseline's cache, here "
            f"{_share(share)}, a stronger sharing that was not measured"
        )
    if evidence.rotary is not None and evidence.rotary != model.rotary:
        found.append(f"measured with positions {evidence.rotary!r}, here {model.rotary!r}")
    return tuple(found)


def published_doubts(published: Published | None, model: Architecture, parameters: int) -> tuple[str, ...]:
    """What weakens one published figure beside what weakens all, and why it may not carry over to the asked model."""
    if published is None:
        return ()
    theirs = architecture(published.model, variant=published.variant)
    size = costs.parameters(theirs)["total"]
    found = list(doubts(published.model, published.variant))
    if theirs.heads != model.heads or max(size, parameters) > SAME_SIZE * min(size, parameters):
        found.append(
            f"published of a model of {size:,} parameters and {theirs.heads} query heads, here {parameters:,} and "
            f"{model.heads}: no promise for this one"
        )
    return tuple(found)


def positions(model: Architecture, ask: Ask) -> tuple[str, ...]:
    """A context that the model cannot run."""
    if model.learned_positions and ask.context > model.positions:
        return (f"its learned positions end at {model.positions:,}: it cannot run {ask.context:,} tokens",)
    return ()


def notes(ask: Ask, records: Records, *, published: bool) -> tuple[str, ...]:
    """What holds for the whole ranking: where the measurements are from, or that there are none, and what is weak."""
    said = [f"Measured: records of {', '.join(records.files)}."] if records.files else []
    if not records.files:
        said.append(
            "Nothing was measured: there is no record of a study of text. Run `twofold study run`, or give --records."
        )
    if published:
        said.append(f"Published figures ({SOURCE}) are weak: {'; '.join(WEAKNESSES)}.")
    if ask.quality is not None:
        said.append(
            f"Quality is the difference in bits per byte, in percent of {ask.baseline}'s; the budget is met only where "
            f"a whole 95 % interval lies within {ask.quality:g} %."
        )
    if ask.dtype in SCALE_BYTES:
        said.append(f"What {ask.dtype} costs in quality is in none of these figures: `twofold evaluate --cache-dtype`.")
    said += [f"Not used: {line}." for line in records.unused]
    return (*said, "Intervals hold for the model, the text and the tokens measured, and promise nothing for others.")


def _difference(evidence: Evidence) -> str:
    interval = evidence.interval
    shown = "no interval" if interval is None else f"95 % interval {interval[0]:+.2f} to {interval[1]:+.2f} %"
    return (
        f"{evidence.percent:+.2f} % of {evidence.comparison.b}'s bits per byte ({shown}, {evidence.comparison.method})"
    )


def _against(ask: Ask, verdict: Verdict | None, evidence: Evidence, held_back: str) -> str:
    if ask.quality is None or verdict is None:
        return ""
    there = verdict_on(ask.quality, evidence.percent, evidence.interval)
    if verdict == "open" and there != "open":
        side = "within" if there == "meets" else "beyond"
        return f", {side} {ask.quality:g} % there, which leaves it open here because {held_back}"
    told = {
        "meets": f", within {ask.quality:g} %",
        "misses": f", beyond {ask.quality:g} %",
        "open": f", which leaves {ask.quality:g} % open",
    }
    return told[verdict]


def _where(evidence: Evidence) -> str:
    tokens = "" if evidence.tokens is None else f", {evidence.tokens:,} tokens of {evidence.corpus}"
    windows = "" if evidence.context is None else f" in windows of {evidence.context:,}"
    seeds = f"{len(evidence.seeds)} seed{'' if len(evidence.seeds) == 1 else 's'}"
    equal = f", at equal {' and '.join(evidence.matched)}" if evidence.matched else ""
    return f"{evidence.file}, {seeds}, {evidence.parameters:,} parameters{tokens}{windows}{equal}"


def _share(share: float) -> str:
    return f"{100 * share:.4g} %"


def _mib(number: int) -> str:
    return f"{number / _MIB:,.1f}"
