"""`HealingSettings`: how a converted model is healed. No torch, so that the command line checks it at once."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from twofold.training.settings import MACHINE_FIELDS, TrainingSettings

OF_THE_CONTROL = ("control", "control_lr")
"""Settings that the healed model does not depend on: a healing may go on with others."""
OF_THE_STUDENT = ("temperature", "layer_loss", "cross_entropy", *OF_THE_CONTROL)
"""Settings that the control does not depend on."""
EVALUATIONS = 5
"""Evaluations in between, unless `every` says how many tokens lie between them."""


class HealingSettings(BaseModel):
    """What is minimised, over which weights, for how long; and what is measured on the way.

    The loss of a token is T² · KL(teacher ‖ student) of the softmax of logits / T, plus `cross_entropy` times that of
    the token that follows, plus `layer_loss` times the relative error of the layers' outputs. See `healing.objective`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tokens: int = Field(ge=1, description="training tokens")
    context: int = Field(1024, ge=4, description="tokens per window; half as many make the shortest recall, of two")
    train: Literal["attention", "all"] = Field("attention", description="the weights that learn")
    lora: int = Field(0, ge=0, description="rank of adapters on the projections, in the place of the weights; 0: none")
    temperature: float = Field(1.0, gt=0)
    layer_loss: float = Field(0.0, ge=0)
    cross_entropy: float = Field(0.0, ge=0)
    every: int = Field(0, ge=0, description="training tokens between evaluations; 0 for a fifth of all")
    sample: int = Field(16384, ge=2, description="held-out tokens that evaluations in between read")
    control: bool = True
    control_lr: float = Field(0.0, ge=0, description="the control's learning rate; 0 for the same")
    seed: int = Field(0, ge=0, lt=2**32)
    training: TrainingSettings = TrainingSettings(batch=4, learning_rate=3e-4, weight_decay=0.0)

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if self.lora and self.train == "all":
            raise ValueError(
                f"adapters of rank {self.lora} (--lora) learn beside the projections of attention, and --train all "
                "takes the weights themselves: give one of the two"
            )
        return self

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return self.training.steps(self.tokens, self.context)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step sees."""
        return self.training.batch * self.training.accumulation * self.context

    @property
    def steps_between(self) -> int:
        """Steps between evaluations."""
        every = self.every or -(-self.tokens // EVALUATIONS)
        return max(1, round(every / self.tokens_per_step))

    def comparable(self) -> dict[str, Any]:
        """What an interrupted run must have been started with to be gone on with."""
        return self.model_dump(mode="json", exclude={"training": set(MACHINE_FIELDS)})

    def for_control(self) -> HealingSettings:
        """The same with the control's learning rate."""
        rate = self.control_lr or self.training.learning_rate
        return self.model_copy(update={"training": self.training.model_copy(update={"learning_rate": rate})})

    def of_control(self) -> dict[str, Any]:
        """What a control must have been trained with to serve."""
        return {name: value for name, value in self.for_control().comparable().items() if name not in OF_THE_STUDENT}
