"""What one finished run leaves behind: its record, as JSON, checked when it is made and when it is read."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

Model = TypeVar("Model", bound=BaseModel)

RECORD_FILE = "record.json"
SETTINGS_FILE = "settings.json"
AGREEMENT = 1e-6  # relative; totals stated twice may differ by the rounding of a sum, by no more


class Part(BaseModel):
    """A piece of a record: immutable, with no unknown keys and no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DocumentRecord(Part):
    """One held-out document: its summed negative log-likelihood in nats, over so many tokens and bytes."""

    name: str
    nats: FiniteFloat
    tokens: PositiveInt
    bytes: PositiveInt


class Validation(Part):
    """Held-out quality. `loss` in nats per token, `bits_per_byte` over every byte of the held-out documents."""

    loss: FiniteFloat
    bits_per_byte: FiniteFloat
    perplexity: FiniteFloat
    tokens: PositiveInt
    bytes: PositiveInt

    @classmethod
    def of(cls, documents: Sequence[DocumentRecord]) -> Self:
        """What the scores of single documents come to."""
        nats = math.fsum(document.nats for document in documents)
        tokens, scored = (sum(getattr(document, unit) for document in documents) for unit in ("tokens", "bytes"))
        return cls(
            loss=nats / tokens,
            bits_per_byte=nats / math.log(2) / scored,
            perplexity=math.exp(nats / tokens),
            tokens=tokens,
            bytes=scored,
        )


NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Sharpness(Part):
    """How sharply a softmax attends; see `evaluation.attention_entropy`: `entropy` is in nats."""

    entropy: NotNegative
    relative_entropy: NotNegative
    saturated: NotNegative


class SoftmaxRecord(Sharpness):
    """The trained model's softmax on held-out windows, of all layers and of each; a layer that sees only its own
    position has none.
    """

    layers: tuple[Sharpness | None, ...]


class GradientRecord(Part):
    """Norms of the gradient before clipping: medians over all steps, over the first tenth and over the last of them,
    and the largest.
    """

    median: NotNegative
    largest: NotNegative
    first_tenth: NotNegative
    last_tenth: NotNegative


Finite = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CacheRecord(Part):
    """A real cache after generating: `bytes_used` by its rows in use, `bytes_reserved` by its storages.

    `bytes_formula` is what the variant's arithmetic promises for the same `tokens`.
    """

    tokens: PositiveInt
    bytes_formula: NonNegativeInt
    bytes_used: PositiveInt
    bytes_reserved: PositiveInt
    bytes_per_token: Finite

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        measured = self.bytes_used / self.tokens
        if not math.isclose(self.bytes_per_token, measured, rel_tol=AGREEMENT):
            raise ValueError(
                f"bytes_per_token is {self.bytes_per_token}, but {self.bytes_used} bytes used for "
                f"{self.tokens} tokens are {measured} per token"
            )
        return self


class Speed(Part):
    """Tokens per second in training and in decoding; wall time of the whole run in seconds."""

    train_tokens_per_second: Finite
    decode_tokens_per_second: Finite
    wall_seconds: Finite


class Environment(Part):
    """Versions and hardware that the run had."""

    twofold: str
    python: str
    torch: str
    transformers: str
    platform: str
    processor: str
    threads: PositiveInt
    device: str
    processes: PositiveInt = 1
    commit: str | None = None


class Sample(Part):
    """Text that the trained model generated after a held-out prompt."""

    prompt: str
    text: str


class CurvePoint(Part):
    """Training loss in nats per token after so many training tokens."""

    tokens: NonNegativeInt
    loss: FiniteFloat


class Labelled(Part):
    """What is said of one entry of a study's variants: its `label`, and its notation, `variant`."""

    label: str
    variant: str

    @model_validator(mode="before")
    @classmethod
    def _has_a_label(cls, data: Any) -> Any:
        """What was written before there were labels is called by its variant."""
        return {"label": data["variant"], **data} if isinstance(data, dict) and "variant" in data else data


class Run(Labelled):
    """One run as `results.json` carries it: everything but the scores of single documents.

    `softmax` is None for a model that has none. Runs of earlier versions have neither it nor `gradient`.
    """

    seed: int
    parameters: dict[str, NonNegativeInt]
    validation: Validation
    cache: CacheRecord
    speed: Speed
    environment: Environment
    configuration: dict[str, Any]
    sample: Sample
    curve: tuple[CurvePoint, ...]
    softmax: SoftmaxRecord | None = None
    gradient: GradientRecord | None = None

    @property
    def changed(self) -> dict[str, Any]:
        """What differs from the study's own model: field → (there, here)."""
        return self.configuration.get("changed", {})

    @property
    def point(self) -> dict[str, Any]:
        """Where in its study's sweep the run stands: dotted key → value; empty without a sweep."""
        return self.configuration.get("point", {})

    @field_validator("parameters")
    @classmethod
    def _names_its_parts(cls, parameters: dict[str, int]) -> dict[str, int]:
        missing = {"total", "attention"} - parameters.keys()
        if missing:
            raise ValueError(f"parameters lack {', '.join(sorted(missing))}; given: {', '.join(parameters)}")
        parts = sum(count for part, count in parameters.items() if part != "total")
        if parts != parameters["total"]:
            raise ValueError(f"the parts have {parts} parameters, and the total says {parameters['total']}")
        return parameters


class RunRecord(Run):
    """One run as its folder keeps it. All runs of a study list the same documents in the same order."""

    documents: tuple[DocumentRecord, ...]

    @model_validator(mode="after")
    def _documents_add_up(self) -> Self:
        stated = Validation.of(self.documents).model_dump()
        for name, number in stated.items():
            said = getattr(self.validation, name)
            if not math.isclose(number, said, rel_tol=AGREEMENT):
                raise ValueError(f"the documents give {name} {number}, the validation says {said}")
        return self

    def without_documents(self) -> Run:
        """This run without the scores of single documents."""
        return Run.model_validate(self.model_dump(exclude={"documents"}))


def read_record(path: Path) -> RunRecord:
    """Read one record. ValueError names the file, the place in it and what to do."""
    return read_checked(path, RunRecord, "delete the run's folder and run the study again")


def write_record(record: RunRecord, path: Path) -> None:
    """Write one record as JSON; a reader sees the old file or the new one, never a half."""
    write_atomically(path, to_json(record))


def read_checked(path: Path, model: type[Model], remedy: str) -> Model:
    """Read a JSON file into `model`; ValueError with the first fault in one line, and the `remedy`."""
    if not path.is_file():
        raise ValueError(f"{path} is not there; {remedy}")
    try:
        return model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(step) for step in fault["loc"]) or "the whole file"
        raise ValueError(f"{path}: {place}: {fault['msg']}; {remedy}") from error


def to_json(model: BaseModel) -> bytes:
    """The model as indented JSON in UTF-8, ending in a line end."""
    return model.model_dump_json(indent=2).encode() + b"\n"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file by replacing it whole, so that an interruption leaves the previous one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
