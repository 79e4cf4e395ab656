"""What the explained model costs, from the arithmetic of `analysis`."""

from __future__ import annotations

from transformers import PreTrainedModel

from twofold.analysis import costs
from twofold.analysis.published_plan import PublishedPlan, plan_published
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
        plan = plan_published(read(model.config.to_dict()), dtype=DTYPE, parameters=parameters)
    except ValueError as error:
        return Cost(parameters=parameters), f"Its cache is not counted: {error}."
    return _of_published(parameters, plan), " ".join(plan.notes) or None


def _of_decoder(config: TwofoldConfig) -> Cost:
    plan = costs.plan(config.architecture, dtype=DTYPE)
    return Cost(
        parameters=plan.parameters,
        parameters_by_part=plan.parameters_by_part,
        macs=plan.macs,
        context=plan.context,
        dtype=plan.dtype,
        cache_bytes_per_token={plan.variant: plan.cache_bytes_per_token},
        cache_bytes={plan.variant: plan.cache_bytes},
    )


def _of_published(parameters: int, plan: PublishedPlan) -> Cost:
    return Cost(
        parameters=parameters,
        context=plan.context,
        dtype=plan.dtype,
        cache_bytes_per_token={way.name: way.bytes_per_token for way in plan.figures},
        cache_bytes={way.name: way.bytes for way in plan.figures},
    )
