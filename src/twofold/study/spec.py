"""The study file: what to compare, on which text, with how many tokens. Checked whole before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from twofold.data.byte_tokens import VOCABULARY
from twofold.data.corpus import STANDARD_LIBRARY
from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.training.settings import TrainingSettings
from twofold.variants.notation import parse

Notation = Annotated[str, AfterValidator(lambda text: str(parse(text)))]


class PlacedError(ValueError):
    """A fault between fields, with the key below, if any, that it is best shown at."""

    def __init__(self, place: tuple[int | str, ...], message: str) -> None:
        super().__init__(message)
        self.place = place


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSpec(_Part):
    """The text: `source` as `load_corpus` takes it, cut into windows of `context` tokens, a share held out."""

    source: str = STANDARD_LIBRARY
    context: int = Field(256, ge=1)
    held_out: float = Field(0.03, gt=0, lt=1)


class SampleSpec(_Part):
    """After training: how many bytes of a held-out document are the prompt, and how many tokens follow."""

    prompt: int = Field(96, ge=1)
    tokens: int = Field(256, ge=2)


class ModelSpec(_Part):
    """A preset, and the fields of `Architecture` that replace the preset's."""

    preset: str = "tiny"
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    mlp: int | None = None
    positions: int | None = None
    block: str | None = None
    rotary: str | None = None
    tied: bool | None = None
    dropout: float | None = None
    rotary_base: float | None = None
    norm_epsilon: float | None = None
    initial_deviation: float | None = None

    @model_validator(mode="after")
    def _is_a_model(self) -> Self:
        try:
            self.architecture("QKV")
        except ValueError as error:
            # The message names the fields that disagree: it is shown at the first of them that the user gave.
            words = [word.strip(",:;") for word in str(error).split()]
            named = [word for word in words if word in self.model_fields_set]
            raise PlacedError(tuple(named[:1]), str(error)) from error
        return self

    def architecture(self, variant: str) -> Architecture:
        """The sizes with a variant; bytes and the document separator make the vocabulary."""
        given = self.model_dump(exclude={"preset"}, exclude_none=True)
        return architecture(self.preset, **given, variant=variant, vocab=VOCABULARY)


class StudySpec(_Part):
    """One study. `tokens` is the training budget of each run; every variant is trained with every seed."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    data: DataSpec = DataSpec()
    model: ModelSpec = ModelSpec()
    variants: tuple[Notation, ...] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field((0,), min_length=1)
    tokens: int = Field(ge=1)
    training: TrainingSettings = TrainingSettings()
    sample: SampleSpec = SampleSpec()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for what, values in (("variants", self.variants), ("seeds", self.seeds)):
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise PlacedError((what, index), f"{value} is named twice in {what}: every run is made once")
        longest = max(self.data.context, self.sample.prompt + self.sample.tokens)
        for index, variant in enumerate(self.variants):
            try:
                sizes = self.model.architecture(variant)
            except ValueError as error:
                raise PlacedError(("variants", index), str(error)) from error
            if sizes.learned_positions and longest > sizes.positions:
                raise PlacedError(
                    ("model",),
                    f"{longest} tokens in a row are asked for (data.context, or sample.prompt + sample.tokens), and "
                    f"the model has {sizes.positions} learned positions: raise model.positions",
                )
        return self

    def comparable(self) -> dict[str, Any]:
        """What must be equal for runs to stand in one study: everything but name, description, variants, seeds."""
        return self.model_dump(mode="json", exclude={"name", "description", "variants", "seeds"})
