"""What healing leaves behind: its record as JSON, checked when it is made and when it is read. No torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, field_validator

from twofold.healing.settings import HealingSettings
from twofold.study.record import (
    CurvePoint,
    Environment,
    Finite,
    NotNegative,
    Part,
    Validation,
    read_checked,
    to_json,
    write_atomically,
)

RECORD_FILE = "heal.json"
REMEDY = "heal the model again"
Loss = Annotated[FiniteFloat, Field(le=700)]
"""Nats per token whose exp(), the perplexity, is a number as well."""


class Recall(Part):
    """How often the second copy of a random sequence is foretold; see `healing.measures.recall`.

    `accuracy` is the share of right answers of `asked`, `standard_error` that of its mean over sequences; `loss` in
    nats per token over the same, `loss_first` over the first copy, which nothing foretells.
    """

    sequences: PositiveInt
    length: PositiveInt
    asked: PositiveInt
    accuracy: float = Field(ge=0, le=1)
    standard_error: NotNegative
    loss: FiniteFloat
    loss_first: FiniteFloat


class Measured(Part):
    """One model: held-out text, what its cache really takes, and what it recalls.

    `cache_bytes_per_token` are the bytes of the cache's storages over the `cache_tokens` that it was made for.
    """

    variant: str
    parameters: PositiveInt
    validation: Validation
    cache_tokens: PositiveInt
    cache_bytes_per_token: Finite
    recall: Recall


class Evaluated(Part):
    """The held-out `loss` in nats per token after so many training tokens, and what it took."""

    tokens: NonNegativeInt
    loss: Loss
    seconds: NotNegative

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss)


class TrainingRecord(Part):
    """How one model was trained: `trained` numbers of `parameters` learnt, adapters not among the latter.

    `seconds` without those of the evaluations in between. `curve` is what was minimised, in nats per token.
    """

    trained: PositiveInt
    parameters: PositiveInt
    tokens: PositiveInt
    steps: PositiveInt
    seconds: Finite
    tokens_per_second: Finite
    curve: tuple[CurvePoint, ...]
    evaluations: tuple[Evaluated, ...] = Field(min_length=1)

    @property
    def best(self) -> Evaluated:
        """The evaluation with the lowest loss; the weights that are kept are the last, whichever this is."""
        return min(self.evaluations, key=lambda one: one.loss)


class TextRecord(Part):
    """The text: where it came from, hashes, and how much there is; `passes` over it are trained."""

    sources: tuple[str, ...]
    held_out: str
    sha256: str
    held_out_sha256: str
    documents: PositiveInt
    bytes: PositiveInt
    tokens: PositiveInt
    held_out_documents: PositiveInt
    sampled_tokens: PositiveInt
    passes: Finite
    tokenizer: str


class ControlRecord(Part):
    """The unconverted model, `before` and `after` it learnt from the text alone; `settings` tell controls apart."""

    settings: dict[str, Any]
    before: Measured
    after: Measured
    training: TrainingRecord
    environment: Environment


class HealRecord(Part):
    """One healing. `before` is the teacher, `converted` the model as it was given, `healed` what it became.

    Of a control's quality `ratios` say what the healed model has: perplexity and bits per byte are better below 1.
    """

    model: str
    teacher: str
    command: str
    settings: dict[str, Any]
    text: TextRecord
    before: Measured
    converted: Measured
    healed: Measured
    training: TrainingRecord
    control: ControlRecord | None
    control_was_there: bool
    ratios: dict[str, float]
    environment: Environment
    packages: dict[str, str | None]
    model_config_of_healed: dict[str, Any]

    @field_validator("settings")
    @classmethod
    def _are_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return HealingSettings.model_validate(settings).model_dump(mode="json")

    def rows(self) -> list[tuple[str, Measured]]:
        """The models by the names that tables give them."""
        found = [("teacher", self.before), ("converted", self.converted), ("healed", self.healed)]
        return found + ([("control", self.control.after)] if self.control else [])


def ratios(before: Measured, converted: Measured, healed: Measured, control: Measured | None) -> dict[str, float]:
    """What tables put side by side, as factors; those of a control only where there is one."""
    found = {
        "cache_healed_to_teacher": healed.cache_bytes_per_token / before.cache_bytes_per_token,
        "perplexity_converted_to_teacher": converted.validation.perplexity / before.validation.perplexity,
        "perplexity_healed_to_teacher": healed.validation.perplexity / before.validation.perplexity,
    }
    if control is not None:
        for name in ("perplexity", "bits_per_byte"):
            one, other = (getattr(model.validation, name) for model in (healed, control))
            found[f"{name}_healed_to_control"] = one / other
    return found


def write_heal_record(record: HealRecord, folder: Path) -> Path:
    """Write `heal.json` into the folder; a reader sees the old file or the new one, never a half."""
    path = folder / RECORD_FILE
    write_atomically(path, to_json(record))
    return path


def read_heal_record(folder: Path) -> HealRecord:
    """The record in a folder that `twofold heal` wrote, or that file. ValueError where there is no sound one."""
    return read_checked(folder if folder.is_file() else folder / RECORD_FILE, HealRecord, REMEDY)
