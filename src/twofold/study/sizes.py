"""The sizes that a study file may give: for all its models, and for one entry alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from twofold.data.byte_tokens import VOCABULARY
from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.variants.notation import parse

Notation = Annotated[str, AfterValidator(lambda text: str(parse(text)))]
CacheBy = Literal["heads", "head_dim"]


class PlacedError(ValueError):
    """A fault between fields, with the key below, if any, that it is best shown at."""

    def __init__(self, place: tuple[int | str, ...], message: str) -> None:
        super().__init__(message)
        self.place = place


class SpecPart(BaseModel):
    """A piece of a study file: immutable, with no unknown keys and no number that is none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sizes(SpecPart):
    """The fields of `Architecture` that a study file may give; what is left out comes from elsewhere."""

    preset: str | None = None
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
    rotary_dims: int | None = None
    latent_dims: int | None = None
    window: int | None = None
    layer_pattern: str | None = None
    scale_exponent: float | None = None
    softcap: float | None = None
    qk_norm: bool | None = None
    sinks: bool | None = None
    scaled_embeddings: bool | None = None
    qkv_bias: bool | None = None
    activation: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The sizes that were given."""
        return self.model_dump(include=set(Sizes.model_fields), exclude_none=True)


class ModelSpec(Sizes):
    """A preset, and the fields of `Architecture` that replace the preset's."""

    preset: str = "tiny"

    @model_validator(mode="after")
    def _is_a_model(self) -> Self:
        try:
            self.architecture("QKV")
        except ValueError as error:
            raise PlacedError(named(error, self.model_fields_set), str(error)) from error
        return self

    def architecture(self, variant: str, vocabulary: int = VOCABULARY, **replaced: Any) -> Architecture:
        """The sizes with a variant and a tokenizer's vocabulary, some of them `replaced`."""
        return architecture(**{**self.given, **replaced}, variant=variant, vocab=vocabulary)


class VariantEntry(Sizes):
    """A variant with sizes of its own: those given replace the study's, for this entry alone.

    `name` is its label; `cache_by` says what matches its cache, where that is not as in `match`.
    """

    variant: Notation
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9 =+.,_()-]*$", max_length=60)
    cache_by: CacheBy | None = None

    @field_validator("name")
    @classmethod
    def _is_no_notation(cls, name: str | None) -> str | None:
        try:
            parse(name or "")
        except ValueError:
            return name
        raise ValueError(f"{name!r} is a variant's notation, which this entry may not be: choose a name that is none")


def named(error: ValueError, given: Iterable[str]) -> tuple[str, ...]:
    """The first given field that a message names: a fault between fields is shown there."""
    words = [word.strip(",:;()") for word in str(error).split()]
    return tuple(word for word in words if word in given)[:1]
