"""A study's text: read, split, tokenised and cut into windows once for all its runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from twofold.data.corpus import Corpus, Document
from twofold.data.packing import Windows
from twofold.data.stream_windows import StreamWindows
from twofold.data.tokenizer import BYTES, Tokenizer, choose
from twofold.data.tokens import tokenise
from twofold.evaluation.bigram import bigram_bits_per_byte
from twofold.study.results import CorpusRecord
from twofold.study.spec import StudySpec
from twofold.study.texts import SplitTexts, Stages


@dataclass(frozen=True)
class StudyData:
    """A study's text, read once for all its runs."""

    texts: SplitTexts
    tokenizer: Tokenizer
    windows: Windows | StreamWindows

    @classmethod
    def load(cls, spec: StudySpec, stages: Stages | None = None) -> StudyData:
        """Read, split, tokenise and pack the study's text. Raises ValueError where there is too little of it."""
        data = spec.data
        texts = SplitTexts.read(data, stages)
        tokenizer = choose(data.tokenizer, texts.beginning, stages and partial(stages, "training the tokenizer"))
        if texts.stream is not None:
            return cls(texts, tokenizer, StreamWindows(texts.stream, data.context, tokenizer, data.packing))
        tokens = tokenise(texts.training, tokenizer, stages and partial(stages, "tokenising"))
        return cls(texts, tokenizer, Windows(tokens, data.context, data.packing))

    @property
    def corpus(self) -> Corpus:
        """All documents; of a stream, those held out."""
        return self.texts.corpus

    @property
    def held_out(self) -> tuple[Document, ...]:
        """The documents that no model is trained on."""
        return self.texts.held_out

    def record(self) -> CorpusRecord:
        """What the results say of the text."""
        return CorpusRecord(
            name=self.corpus.name,
            sha256=self.corpus.sha256,
            documents=len(self.corpus.documents),
            bytes=self.corpus.bytes,
            held_out_bytes=sum(document.size for document in self.held_out),
            stream=self.corpus.stream,
            tokenizer="" if self.tokenizer is BYTES else self.tokenizer.fingerprint,
        )

    def bigram(self) -> float:
        """Bits per byte of a byte-bigram model of the training text: what every variant must beat.

        Of a stream, the model counts the beginning (`SplitTexts.beginning`).
        """
        return bigram_bits_per_byte(self.texts.beginning(), self.held_out)

    def prompt(self, wanted: int) -> list[int]:
        """END and `wanted` bytes of the first held-out document that is long enough (the longest where none is)."""
        document = next((d for d in self.held_out if d.size >= wanted), max(self.held_out, key=_size))
        text = document.content[:wanted].decode(errors="ignore").encode()  # a cut through a character is no text
        return [self.tokenizer.end, *self.tokenizer.encode(text).tolist()]


def _size(document: Document) -> int:
    return document.size
