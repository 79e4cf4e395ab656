"""What `explain.json` holds: one model's measures, layer by layer. No torch.

The measures are open mappings from a name to numbers, so that a new one needs no change here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

EXPLAIN_FILE = "explain.json"
MOST_MODELS = 2
"""Models that are put side by side."""

Number = FiniteFloat | None
"""None where a measure has no value, as the direction of a matrix of zeros."""
Numbers = dict[str, Number | tuple[Number, ...]]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Part(BaseModel):
    """A piece of the record: immutable, with no unknown keys and no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TextRead(Part):
    """The text that the model read: its first `tokens` tokens in windows of `window`, and the first of them as `pieces`
    for the maps.
    """

    source: str
    sha256: str
    tokens: PositiveInt
    window: PositiveInt
    pieces: tuple[str, ...]


class LayerMeasures(Part):
    """One layer, counted from 0. `heads` are the measures that have one number for each head."""

    layer: NonNegativeInt
    similarity: Numbers = Field(default_factory=dict)
    rank: Numbers = Field(default_factory=dict)
    circuits: Numbers = Field(default_factory=dict)
    attention: Numbers = Field(default_factory=dict)
    scale: Numbers = Field(default_factory=dict)
    sharing: Numbers = Field(default_factory=dict)
    heads: dict[str, tuple[Number, ...]] = Field(default_factory=dict)

    def number(self, section: str, name: str) -> float | None:
        """One number of a section; None where it was not measured or is a list."""
        value = getattr(self, section).get(name)
        return None if isinstance(value, tuple) else value


class AttentionMap(Part):
    """The attention of one head over the first tokens of the text: [query position][key position].

    A row ends with its last weight that is not 0.
    """

    layer: NonNegativeInt
    head: NonNegativeInt
    weights: tuple[tuple[Share, ...], ...]


class Cost(Part):
    """What the model costs by arithmetic (`analysis`). Bytes are bytes, `macs` those of one pass over `context` tokens.

    `cache_bytes_per_token` by the way to cache, and `cache_bytes` the same for one sequence of `context` tokens.
    `decode` is one step of one such sequence (`analysis.roofline.Work`), and `devices` its seconds on some devices at
    best (`analysis.roofline.Roof`), with the prefill's.
    """

    parameters: PositiveInt
    parameters_by_part: dict[str, NonNegativeInt] = Field(default_factory=dict)
    macs: dict[str, NonNegativeInt] = Field(default_factory=dict)
    context: PositiveInt | None = None
    dtype: str | None = None
    cache_bytes_per_token: dict[str, FiniteFloat] = Field(default_factory=dict)
    cache_bytes: dict[str, NonNegativeInt] = Field(default_factory=dict)
    decode: dict[str, FiniteFloat] = Field(default_factory=dict)
    devices: dict[str, dict[str, FiniteFloat | str]] = Field(default_factory=dict)


class Correlation(Part):
    """Spearman's ρ over `layers` between what a measure foretold of a way to share and what it cost, with the limits of
    a 95 % interval from the percentile bootstrap over layers. None of too few layers.
    """

    method: str
    predictor: str
    layers: NonNegativeInt
    spearman: Number
    low: Number
    high: Number


class Sharing(Part):
    """Losses of sharing keys and values in one layer at a time: the model's own in nats per token on `scored_tokens`,
    none of which are among the `fitted_tokens`.
    """

    baseline_loss: FiniteFloat
    fitted_tokens: PositiveInt
    scored_tokens: PositiveInt
    correlations: tuple[Correlation, ...]


class Explanation(Part):
    """All that was measured of one model. `patterns` are scores on repeated random tokens, by layer and head."""

    model: str
    variant: str | None
    architecture: dict[str, int | float | str]
    seed: int
    text: TextRead | None = None
    layers: tuple[LayerMeasures, ...]
    maps: tuple[AttentionMap, ...] = ()
    cost: Cost | None = None
    sharing: Sharing | None = None
    notes: tuple[str, ...] = ()
    command: str
    environment: dict[str, Any]

    def series(self, section: str, name: str) -> list[float | None]:
        """One measure over the layers, None where a layer lacks it; empty where all do."""
        values = [layer.number(section, name) for layer in self.layers]
        return values if any(value is not None for value in values) else []

    def names(self, section: str) -> Iterator[str]:
        """The names in a section, each once, in the order in which layers bring them."""
        yield from dict.fromkeys(name for layer in self.layers for name in getattr(layer, section))


def as_json(explanation: Explanation, *, maps: bool) -> dict[str, Any]:
    """The record as JSON takes it, with the attention maps or without."""
    return explanation.model_dump(mode="json", exclude=None if maps else {"maps"})


def read_explanations(path: Path) -> list[Explanation]:
    """Read an `explain.json`: of one model an object, of two a list. ValueError names the file and the place."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # the second for brackets that are nested too deep
        raise ValueError(f"{path} is not JSON: run twofold explain again") from error
    told = content if isinstance(content, list) else [content]
    if not 1 <= len(told) <= MOST_MODELS:
        raise ValueError(f"{path} holds {len(told)} explanations, and one or two are shown: run twofold explain again")
    try:
        return [Explanation.model_validate(one) for one in told]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {place or 'all'}: {first['msg']}; run twofold explain again") from error
