"""One task of a study: who is compared on it, with which sizes and settings. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.study.contenders import slug
from twofold.study.record import RECORD_FILE
from twofold.study.sizes import Sizes, SpecPart
from twofold.study.sweep import Point, fields
from twofold.tasks.task import Form, Head, TaskSpec
from twofold.training.settings import MACHINE_FIELDS, TrainingSettings
from twofold.trials.record import read_trial_record
from twofold.variants.choices import PositionTerm
from twofold.variants.notation import parse


class EncoderSizes(SpecPart):
    """Sizes of an encoder, as `TwofoldEncoderConfig` describes them; 0 where they follow from others.

    The defaults are those of the synthetic tasks of arXiv 2606.04032.
    """

    layers: int = Field(2, ge=1)
    width: int = Field(64, ge=1)
    heads: int = Field(2, ge=1)
    head_dim: int = Field(0, ge=0)
    mlp: int = Field(0, ge=0)
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    norm: Literal["post", "pre"] = "post"
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = Field(0.0, ge=0, lt=1)
    patch: int = Field(0, ge=0)
    initial_deviation: float = Field(0.0, ge=0)
    term_channels: int = Field(10, ge=1)  # as published for sequences; 50 for images
    term_per_head: bool = False


@dataclass(frozen=True)
class TaskContender:
    """A variant with its sizes on one task: of an encoder, or where the task is causal those of `Architecture`."""

    label: str
    variant: str
    sizes: Mapping[str, Any]

    @property
    def slug(self) -> str:
        """The label as part of a folder's name."""
        return slug(self.label)

    def architecture(self, form: Form) -> Architecture:
        """The decoder's architecture, for a causal task. ValueError where sizes do not fit."""
        return architecture(**self.sizes, variant=self.variant, vocab=form.vocabulary)


def contender(label: str, variant: str, sizes: Mapping[str, Any], task: TaskSpec) -> TaskContender:
    """Check a variant with sizes for a task. ValueError, or pydantic's, where they do not fit it or one another.

    Nothing is read: what depends on the images of a source is checked when its models are made.
    """
    if task.head is Head.NEXT:
        return _decoder(label, variant, sizes, task.form)
    is_set = task.reads == "features"
    of_encoder = EncoderSizes.model_validate({**({"positions": "none"} if is_set else {}), **sizes})
    parsed = parse(variant)
    parsed.kv_heads_for(of_encoder.heads)
    if is_set and of_encoder.positions != "none":
        raise ValueError(f"a set has no order, and positions are {of_encoder.positions!r}: set positions to 'none'")
    if is_set and parsed.position_term not in (PositionTerm.NONE, PositionTerm.TEMPERATURE):
        raise ValueError(f"a set has no order, and {variant} gives its members positions: leave it out")
    return TaskContender(label, variant, of_encoder.model_dump())


def _decoder(label: str, variant: str, sizes: Mapping[str, Any], form: Form) -> TaskContender:
    given = {"preset": "tiny", **Sizes.model_validate(sizes).given}
    made = TaskContender(label, variant, given)
    of_model = made.architecture(form)
    if of_model.learned_positions and form.length > of_model.positions:
        raise ValueError(
            f"examples have {form.length} tokens, and the model has {of_model.positions} learned positions: raise "
            "positions"
        )
    return made


@dataclass(frozen=True)
class Trial:
    """One task of a study, as the plan of its runs sees it (`study.plan.Compared`).

    `steps` are those of each run; `looks` says how often it is scored on validation examples while it trains, and a
    look whose score reaches `until` ends its training.
    """

    name: str
    task: TaskSpec
    contenders: tuple[TaskContender, ...]
    baseline: str
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    steps: int
    training: TrainingSettings
    looks: int
    until: float | None = None

    @property
    def folder(self) -> str:
        """The folder of its runs, below the study's."""
        return slug(self.name)

    @property
    def run_count(self) -> int:
        """Runs that it comes to."""
        return len(self.contenders) * (len(self.points) + len(self.seeds) - 1)

    def at(self, point: Point) -> Trial:
        """The trial with the settings of one point."""
        training = {**self.training.model_dump(), **fields(point, "training")}
        return replace(self, training=TrainingSettings.model_validate(training), points=({},))

    def picking_loss(self, folder: Path) -> tuple[float, ...]:
        """What is missing of a perfect score on the validation examples; where scores are equal, the steps that it
        took, and then the loss. Scores from `until` on count as equal, since training ends there.
        """
        record = read_trial_record(folder / RECORD_FILE)
        enough = self.until or 1.0
        return 1 - min(record.validation.score, enough), record.looks[-1].step, record.validation.loss

    def comparable(self) -> dict[str, Any]:
        """What must be equal for runs to stand in one table."""
        return {
            "task": self.task.model_dump(mode="json", exclude={"solved"}),  # which the runs do not depend on
            "steps": self.steps,
            "looks": self.looks,
            "training": self.training.model_dump(mode="json", exclude=set(MACHINE_FIELDS)),
            **({"until": self.until} if self.until else {}),
        }
