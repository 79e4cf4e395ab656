"""A study's documents, from wherever its source is: which train, and which are held out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from twofold.data.corpus import Corpus, Document, load_corpus
from twofold.data.dataset import DatasetSource, load_rows, row_name
from twofold.data.split import by_digest, split
from twofold.data.streams import DatasetStream
from twofold.data.trained_tokenizer import TRAINING_BYTES
from twofold.study.data_spec import STREAM_HELD_OUT, DataSpec

Stages = Callable[[str, int, int], None]
"""Called with what is being done to the text, how much of it is done, and how much there is in all."""


@dataclass(frozen=True)
class SplitTexts:
    """A source's documents, split. Those to train on may come from a stream; then `training` is empty."""

    corpus: Corpus
    training: tuple[Document, ...]
    held_out: tuple[Document, ...]
    stream: DatasetStream | None = None

    @classmethod
    def read(cls, data: DataSpec, stages: Stages | None = None) -> SplitTexts:
        """Read and split what `data` names; of a stream, what is held out.

        Raises ValueError where it is not there, or where nothing would be left to train on.
        """
        progress = stages and partial(stages, "reading")
        source = data.dataset
        if source is None:
            corpus = load_corpus(data.source, progress)
            return cls(corpus, *split(corpus, data.held_out))
        if data.streaming:
            return cls._of_stream(data, source)
        corpus = load_rows(source, progress)
        if data.held_out_split is None:
            return cls(corpus, *split(corpus, data.held_out))
        held_out = load_rows(replace(source, split=data.held_out_split), progress).documents[: data.held_out_documents]
        both = Corpus(corpus.name, corpus.documents + held_out)
        return cls(both, by_digest(corpus.documents), by_digest(held_out))

    @classmethod
    def _of_stream(cls, data: DataSpec, source: DatasetSource) -> SplitTexts:
        stream = DatasetStream(source)
        apart = DatasetStream(replace(source, split=data.held_out_split)) if data.held_out_split else stream
        held_out = tuple(apart.take(data.held_out_documents or STREAM_HELD_OUT))
        if not held_out or next(iter(stream), None) is None:
            raise ValueError(
                f"{source}: holding out {len(held_out):,} document(s) leaves nothing to train on, or nothing is held "
                "out: check split and column, or lower data.held_out_documents"
            )
        return cls(Corpus(str(source), held_out, stream.identity), (), held_out, stream)

    def beginning(self) -> tuple[Document, ...]:
        """The documents to train on; of a stream, its first `TRAINING_BYTES`, read into memory."""
        return self.training if self.stream is None else tuple(_beginning(self.stream))


def whole_text(data: DataSpec, stages: Stages | None = None) -> tuple[Document, ...]:
    """Every document of the source; of a stream, those held out. ValueError where it is not there."""
    progress = stages and partial(stages, "reading")
    if data.dataset is None:
        return load_corpus(data.source, progress).documents
    if data.streaming:
        return SplitTexts.read(data, stages).held_out
    return load_rows(data.dataset, progress).documents


def _beginning(stream: DatasetStream) -> Iterator[Document]:
    read = 0
    for number, content in enumerate(stream):
        if read >= TRAINING_BYTES:
            return
        read += len(content)
        yield Document(row_name(stream.source, number), content)
