"""A published model planned from its configuration: what it caches, its time on devices, and what is fixed in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from twofold.analysis.device_plan import DevicePlan, Use, published_on_device
from twofold.analysis.devices import Device
from twofold.analysis.published_decoding import weights_of
from twofold.analysis.published_plan import NEEDED, STORED, PublishedPlan, plan_published, ways
from twofold.analysis.published_source import read, without_storage
from twofold.variants.variant import Variant

_MIB = 2**20


class ExistingPlan(NamedTuple):
    """The plan of a published model, and each way to cache it on each device."""

    plan: PublishedPlan
    on_devices: tuple[DevicePlan, ...]

    def as_dict(self) -> dict[str, Any]:
        """Both as JSON takes them: the devices stand with the figures of their way to cache."""
        told = self.plan.as_dict()
        for figures in told["figures"] if self.on_devices else ():
            figures["devices"] = [one.as_dict() for one in self.on_devices if one.name == figures["name"]]
        return told

    @property
    def statement(self) -> str:
        """In a sentence, what cannot be changed without training, and what the model caches as it is."""
        plan, figures = self.plan, {one.name: one for one in self.plan.figures}
        needed, stored = figures[NEEDED], figures.get(STORED)
        kept = ""
        if stored and stored.bytes_batch != needed.bytes_batch:
            kept = f", and transformers stores {stored.bytes_batch / _MIB:,.2f} MiB"
        return (
            f"{plan.model_type} is trained with its projections and heads: any other sharing, and so every “what if” "
            f"below, means training, and nothing here measured what it would cost. As it is, {plan.batch:,} × "
            f"{plan.context:,} tokens need {needed.bytes_batch / _MIB:,.2f} MiB of cache{kept}."
        )


def plan_existing(
    source: str | Path | Mapping[str, Any],
    *,
    variants: Sequence[Variant] = (),
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    memory: int | None = None,
    devices: Sequence[Device] = (),
    efficiency: float = 1.0,
    price_per_hour: float | None = None,
) -> ExistingPlan:
    """Plan the model of a configuration (`published_source.read`), as `plan_published`, and on `devices`.

    Raises ValueError as both do, and with devices where the weights, which every step reads, cannot be counted.
    """
    cache = read(source)
    model = without_storage(source)
    weights = None if model is None else weights_of(model)
    if devices and weights is None:
        raise ValueError("the parameters could not be counted, and every step reads them: leave --device out")
    plan = plan_published(
        cache,
        context=context,
        batch=batch,
        dtype=dtype,
        variants=variants,
        memory=memory,
        parameters=None if weights is None else weights.total,
    )
    use = Use(plan.context, batch, dtype, efficiency, price_per_hour)
    on_devices = [
        published_on_device(name, way, weights, device, use, stored=name == STORED)
        for device in devices
        if weights is not None
        for name, way in ways(cache, dtype, variants).items()
    ]
    return ExistingPlan(plan, tuple(on_devices))
