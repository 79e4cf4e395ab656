"""The `data` part of a study file: which text, which tokens, how they are cut into windows."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from twofold.data.corpus import STANDARD_LIBRARY
from twofold.data.dataset import PREFIX, DatasetSource
from twofold.data.tokenizer import vocabulary
from twofold.study.sizes import PlacedError, SpecPart

STREAM_HELD_OUT = 1000
"""Documents of a stream that are held out where nothing else is said."""


class DataSpec(SpecPart):
    """The text: `source` as `load_corpus` takes it, or a dataset, cut into windows of `context` tokens.

    Of a text, the share `held_out` of its bytes is held out. A dataset, `dataset:NAME` or `dataset:FOLDER`, has a
    `subset`, `split`, `column` and `revision` (see `DatasetSource`), and may have a `held_out_split` instead, of which
    `held_out_documents` are taken, or all. With `streaming` it is read while training goes on; then the first
    `held_out_documents` (1,000) of the `held_out_split`, or of the stream itself, are held out.
    """

    source: str = STANDARD_LIBRARY
    context: int = Field(256, ge=1)
    held_out: float = Field(0.03, gt=0, lt=1)
    tokenizer: str = "bytes"
    packing: Literal["packed", "separate", "padded"] = "packed"
    subset: str | None = None
    split: str = Field("train", min_length=1)
    column: str = Field("text", min_length=1)
    revision: str | None = None
    streaming: bool = False
    held_out_split: str | None = Field(None, min_length=1)
    held_out_documents: int | None = Field(None, ge=1)

    @field_validator("tokenizer")
    @classmethod
    def _is_there(cls, name: str) -> str:
        vocabulary(name)
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.dataset is None:
            for name in ("subset", "split", "column", "revision", "streaming", "held_out_split", "held_out_documents"):
                if getattr(self, name) != DataSpec.model_fields[name].default:
                    raise PlacedError((name,), f"only datasets have this: leave it out, or give source {PREFIX}NAME")
        elif not self.dataset.name:
            raise PlacedError(("source",), f"name a dataset on the hub or a folder after {PREFIX}")
        elif self.held_out_split == self.split:
            raise PlacedError(("held_out_split",), f"{self.split} is what the models are trained on")
        elif self.held_out_documents and not (self.streaming or self.held_out_split):
            raise PlacedError(
                ("held_out_documents",), "goes with streaming or held_out_split; otherwise held_out is the share"
            )
        return self

    @property
    def dataset(self) -> DatasetSource | None:
        """The dataset that the source names; None where it is files."""
        if not self.source.startswith(PREFIX):
            return None
        name = self.source.removeprefix(PREFIX).strip()
        return DatasetSource(name, self.subset, self.split, self.column, self.revision)

    @property
    def vocabulary(self) -> int:
        """Tokens of the tokenizer, the document separator among them."""
        return vocabulary(self.tokenizer)
