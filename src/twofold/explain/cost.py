"""What the explained model costs, from the arithmetic of `analysis`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from twofold.analysis import costs
from twofold.analysis.device_plan import DevicePlan, Use, on_device, published_on_device
from twofold.analysis.devices import FIRST_CHOICE, find_devices
from twofold.analysis.published import PublishedCache
from twofold.analysis.published_decoding import weights_of
from twofold.analysis.published_plan import NEEDED, PublishedPlan, plan_published
from twofold.analysis.published_source import read
from twofold.explain.record import Cost
from twofold.models.configuration import TwofoldConfig
from twofold.models.encoder_configuration import TwofoldEncoderConfig

DTYPE = "bfloat16"
"""Of the cache that is counted, whatever type the weights were stored in."""


def cost_of(model: PreTrainedModel) -> tuple[Cost, str | None]:
    """The cost, and a note where only a part of it is known.

    A decoder of this package: `analysis.costs` at its longest context. An encoder: its parameters, as it keeps no
    cache. Any other model: its parameters, and the cache that its configuration tells (`analysis.published_source`).
    """
    if isinstance(model.config, TwofoldConfig):
        return _of_decoder(model.config), None
    if isinstance(model.config, TwofoldEncoderConfig):
        parts = costs.measured_parameters(model)
        total = parts.pop("total")
        return Cost(parameters=total, parameters_by_part=parts), "An encoder keeps no cache."
    parameters = sum(parameter.numel() for parameter in model.parameters())
    try:
        cache = read(model.config.to_dict())
        plan = plan_published(cache, dtype=DTYPE, parameters=parameters)
    except ValueError as error:
        return Cost(parameters=parameters), f"Its cache is not counted: {error}."
    return _of_published(model, cache, plan, parameters), " ".join(plan.notes) or None


def _of_decoder(config: TwofoldConfig) -> Cost:
    plan = costs.plan(config.architecture, dtype=DTYPE)
    use = Use(plan.context, dtype=DTYPE)
    return Cost(
        parameters=plan.parameters,
        parameters_by_part=plan.parameters_by_part,
        macs=plan.macs,
        context=plan.context,
        dtype=plan.dtype,
        cache_bytes_per_token={plan.variant: plan.cache_bytes_per_token},
        cache_bytes={plan.variant: plan.cache_bytes},
        **_on_devices([on_device(config.architecture, device, use) for device in find_devices(FIRST_CHOICE)]),
    )


def _of_published(model: PreTrainedModel, cache: PublishedCache, plan: PublishedPlan, parameters: int) -> Cost:
    use, weights = Use(plan.context, dtype=DTYPE), weights_of(model)
    return Cost(
        parameters=parameters,
        context=plan.context,
        dtype=plan.dtype,
        cache_bytes_per_token={way.name: way.bytes_per_token for way in plan.figures},
        cache_bytes={way.name: way.bytes for way in plan.figures},
        **_on_devices(
            [published_on_device(NEEDED, cache, weights, device, use) for device in find_devices(FIRST_CHOICE)]
        ),
    )


def _on_devices(plans: Sequence[DevicePlan]) -> dict[str, Any]:
    """The step, which is the same on all devices, and its times."""
    return {
        "decode": plans[0].decode.as_dict(),
        "devices": {
            plan.device.name: {
                **plan.decode_time.as_dict(),
                "tokens_per_second": plan.tokens_per_second,
                "prefill_seconds": plan.prefill_time.seconds,
                "fits": "yes" if plan.fits else "no",
            }
            for plan in plans
        },
    }
