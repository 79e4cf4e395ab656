"""The text that a model is healed on, and the text that it is measured on: read, tokenised, cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from twofold.data.corpus import Corpus, Document, load_corpus
from twofold.data.packing import Windows
from twofold.data.split import by_digest, split
from twofold.data.tokenizer import Tokenizer
from twofold.data.tokens import tokenise
from twofold.healing.record import TextRecord
from twofold.healing.settings import HealingSettings
from twofold.study.texts import Stages

HELD_OUT = "0.05"
"""The share that is held out where no text is named."""


@dataclass(frozen=True)
class HealingTexts:
    """Windows to train on, documents to measure on, and the beginnings of these for evaluations in between."""

    windows: Windows
    held_out: tuple[Document, ...]
    sample: tuple[Document, ...]
    tokenizer: Tokenizer
    record: TextRecord

    @classmethod
    def read(
        cls,
        sources: Sequence[str],
        held_out: str,
        tokenizer: Tokenizer,
        settings: HealingSettings,
        stages: Stages | None = None,
    ) -> HealingTexts:
        """Read the `sources` (see `data.corpus.load_corpus`) and what is held out: another source, or a share of them.

        Raises ValueError where there is no text, or too little, or where a held-out text is trained on as well.
        """
        progress = stages and partial(stages, "reading")
        read = [load_corpus(source, progress) for source in sources]
        corpus = Corpus(", ".join(sources), tuple(document for each in read for document in each.documents))
        share = _share(held_out)
        if share is None:
            training, apart = by_digest(corpus.documents), by_digest(load_corpus(held_out, progress).documents)
            _refuse_overlap(training, apart)
        else:
            training, apart = split(corpus, share)
        tokens = tokenise(training, tokenizer, stages and partial(stages, "tokenising"))
        windows = Windows(tokens, settings.context)
        sample, sampled = _sample(apart, tokenizer, settings.sample)
        record = TextRecord(
            sources=tuple(sources),
            held_out=held_out,
            sha256=Corpus("", training).sha256,
            held_out_sha256=Corpus("", apart).sha256,
            documents=len(training),
            bytes=sum(document.size for document in training),
            tokens=len(tokens.tokens),
            held_out_documents=len(apart),
            sampled_tokens=sampled,
            passes=settings.steps * settings.tokens_per_step / (len(windows) * settings.context),
            tokenizer=tokenizer.fingerprint,
        )
        return cls(windows, apart, sample, tokenizer, record)


def _share(held_out: str) -> float | None:
    """The number that was written; None for anything else."""
    try:
        return float(held_out)
    except ValueError:
        return None


def _refuse_overlap(training: Sequence[Document], held_out: Sequence[Document]) -> None:
    """A text on both sides would be measured after it was learnt by heart."""
    known = {sha256(document.content).digest() for document in training}
    both = [document.name for document in held_out if sha256(document.content).digest() in known]
    if both:
        raise ValueError(
            f"{len(both)} of {len(held_out)} held-out documents are trained on as well, {both[0]} for one: name texts "
            "for --data that leave them out"
        )


def _sample(documents: Sequence[Document], tokenizer: Tokenizer, most: int) -> tuple[tuple[Document, ...], int]:
    """The beginning of each document, so that all have about `most` tokens together; and how many they have."""
    tokens = sum(len(text) + 1 for text in tokenizer.encode_batch([document.content for document in documents]))
    if tokens <= most:
        return tuple(documents), tokens
    cut = []
    for document in documents:
        size = max(1, round(document.size * most / tokens))
        cut.append(Document(document.name, _beginning(document.content, size)))
    counts = [len(text) + 1 for text in tokenizer.encode_batch([document.content for document in cut])]
    return tuple(cut), sum(counts)


def _beginning(content: bytes, size: int) -> bytes:
    """About so many bytes: whole characters, of UTF-8 text at least one, since a part of one is no text."""
    for end in range(size, size + 4):
        if text := content[:end].decode(errors="ignore"):
            return text.encode()
    return content[:size]
