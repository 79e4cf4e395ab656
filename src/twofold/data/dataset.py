"""Texts of a Hugging Face dataset: on the hub, saved in a folder, or files that the library `datasets` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.data.corpus import Corpus, Document

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

PREFIX = "dataset:"
"""A source that begins so is a dataset: `dataset:roneneldan/TinyStories`, `dataset:/path/to/folder`."""

SAVED_FILES = ("state.json", "dataset_dict.json")
"""One of these lies in a folder that `save_to_disk` wrote: of a dataset, or of several splits."""

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class DatasetSource:
    """A split of a dataset and the column of its texts.

    `name` is a hub name, a folder that `save_to_disk` wrote, or a folder or file of Parquet, JSON, CSV or text. On the
    hub, `revision` is a commit, tag or branch.
    """

    name: str
    subset: str | None = None
    split: str = "train"
    column: str = "text"
    revision: str | None = None

    def __str__(self) -> str:
        parts = (("subset", self.subset), ("split", self.split), ("revision", self.revision))
        return ", ".join([PREFIX + self.name, *(f"{name} {value}" for name, value in parts if value)])

    def identity(self, fingerprint: str) -> str:
        """All that says which texts these are, as JSON."""
        return json.dumps({**vars(self), "fingerprint": fingerprint}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """The text of one row, with the SHA-256 that it had when the corpus was loaded."""

    rows: Dataset
    column: str
    index: int
    size: int
    sha256: bytes

    def read(self) -> bytes:
        """The text as UTF-8. ValueError where it is no longer what it was."""
        content = self.rows[self.index][self.column].encode()
        if sha256(content).digest() != self.sha256:
            raise ValueError(f"Row {self.index} of the dataset has changed since it was loaded: start again")
        return content


def load_rows(source: DatasetSource, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """The split's texts that are not empty, in its order and named `split#00000000` by row.

    Rows stay where they are and are read by index; one pass over them takes their hashes. `progress` is called with
    (rows read, rows in all). Raises ValueError where the dataset, split or column is not there, or has no text.
    """
    rows, _ = open_rows(source, streaming=False)
    documents = []
    first = 0
    for batch in each(rows.iter(batch_size=_ROWS_AT_ONCE), source):
        texts = batch[source.column]
        for index, text in enumerate(texts, start=first):
            content = text_of(text, source, index)
            if content:
                place = DatasetRow(rows, source.column, index, len(content), sha256(content).digest())
                documents.append(Document(row_name(source, index), place))
        first += len(texts)
        if progress is not None:
            progress(first, len(rows))
    if not documents:
        raise ValueError(f"Nothing to read in {source}: {first} row(s), and none with text in {source.column!r}")
    return Corpus(str(source), tuple(documents))


def row_name(source: DatasetSource, index: int) -> str:
    """What the document of a row is called."""
    return f"{source.split}#{index:08}"


def text_of(value: Any, source: DatasetSource, index: int) -> bytes:
    """A row's text as UTF-8, empty where there is none. ValueError where the column holds something else."""
    if value is None:
        return b""
    if not isinstance(value, str):
        raise ValueError(
            f"The column {source.column!r} of {source} holds {type(value).__name__} in row {index} and no text: name "
            "another with data.column"
        )
    return value.encode()


def open_rows(source: DatasetSource, *, streaming: bool) -> tuple[Any, str]:
    """The split with the column of texts alone, and the fingerprint of what was opened.

    A `datasets.Dataset`, or an `IterableDataset` for a stream. Raises ValueError in one line for what is not there.
    """
    require_library()
    with one_line(source):
        rows, fingerprint = _open(source, streaming)
        columns = rows.column_names or list(next(iter(rows), {}))
    if source.column not in columns:
        raise ValueError(
            f"{source} has no column {source.column!r}: name one with data.column; there are {', '.join(columns)}"
        )
    return rows.select_columns([source.column]), fingerprint


def each(rows: Iterable[dict[str, Any]], source: DatasetSource) -> Iterator[dict[str, Any]]:
    """The rows, or batches of them, one after another. ValueError in one line for what cannot be read."""
    with one_line(source):
        yield from rows


def _open(source: DatasetSource, streaming: bool) -> tuple[Dataset | IterableDataset, str]:
    import datasets

    path = Path(os.path.expanduser(source.name))  # noqa: PTH111 – unlike Path's, it leaves an unknown ~ as it is
    if source.revision and path.exists():
        raise ValueError("only the hub has revisions, and this is a folder or file: leave data.revision out")
    if any((path / name).is_file() for name in SAVED_FILES):
        try:
            saved = datasets.load_from_disk(str(path))
        except IndexError as error:  # its way to say so
            raise ValueError("it has no rows, or one of its splits has none") from error
        if isinstance(saved, datasets.DatasetDict):
            if source.split not in saved:
                raise ValueError(f"there is no split {source.split!r}, only {', '.join(saved)}")
            saved = saved[source.split]
        return (saved.to_iterable_dataset() if streaming else saved), saved._fingerprint
    if not path.exists() and source.name.startswith(("/", ".", "~")):
        raise ValueError(f"there is no file or folder {path.absolute()}")
    files = {"path": str(path.parent), "data_files": path.name} if path.is_file() else {"path": source.name}
    if path.is_dir():
        files["path"] = str(path)
    builder = datasets.load_dataset_builder(**files, name=source.subset, revision=source.revision)
    if streaming:
        return builder.as_streaming_dataset(split=source.split), str(builder.hash)
    builder.download_and_prepare()
    return builder.as_dataset(split=source.split), str(builder.hash)


def require_library() -> None:
    """Raise ValueError, with what to install, where the library is missing."""
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise ValueError("Datasets need the library of that name: pip install 'twofold[datasets]'") from error


@contextmanager
def one_line(source: DatasetSource) -> Iterator[None]:
    """Faults of the library, which raises errors of many kinds and lengths, as ValueErrors in one line."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (ValueError, OSError, KeyError, ImportError, NotImplementedError, DatasetsError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        advice = ""
        if isinstance(error, ConnectionError):
            advice = (
                "; without a network, save it where there is one (load_dataset(NAME).save_to_disk(FOLDER)) and give "
                f"{PREFIX}/path/to/folder"
            )
        raise ValueError(f"Cannot read {source}: {reason}{advice}") from error
