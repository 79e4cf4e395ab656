"""Text corpora: named documents, from the standard library's source, a file, a folder or a glob."""

import glob
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Protocol

from twofold.data.file_text import FileText, blocks, cut
from twofold.data.functions import functions

STANDARD_LIBRARY = "python-stdlib"
"""The default corpus: every machine that runs this program has it (facts: 12.1 MB for Python 3.11)."""

STANDARD_FUNCTIONS = "python-functions"
"""The functions of the same source, a document each: short texts (half of them below 250 bytes in Python 3.11)."""

IN_MEMORY = 2**26
"""A corpus up to so many bytes (64 MiB) is held in memory, and so are its tokens; a larger one stays where it is."""

LONGEST_FILE = 2**22
"""A larger file is cut into pieces: a document is tokenised at once, and takes many times its bytes meanwhile."""

_NOT_LIBRARY_SOURCE = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


class Text(Protocol):
    """A text that lies elsewhere: its bytes, and their SHA-256, are known without reading it."""

    @property
    def size(self) -> int:
        """Bytes of the text."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 of the text, 32 bytes."""

    def read(self) -> bytes:
        """The text. ValueError where it is no longer the same."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text: a name relative to its corpus, and its bytes, in memory or read each time they are asked for."""

    name: str
    text: bytes | Text

    @property
    def content(self) -> bytes:
        """The bytes of the text."""
        return self.text if isinstance(self.text, bytes) else self.text.read()

    @property
    def size(self) -> int:
        """Bytes of the text; reads nothing."""
        return len(self.text) if isinstance(self.text, bytes) else self.text.size

    @property
    def digest(self) -> bytes:
        """SHA-256 of name and content; each is hashed first, so that no byte can move from one to the other."""
        content = sha256(self.text).digest() if isinstance(self.text, bytes) else self.text.sha256
        return sha256(sha256(self.name.encode()).digest() + content).digest()


@dataclass(frozen=True)
class Corpus:
    """Documents under one name: the source that they were loaded from.

    `stream` says of a source that is never read whole what it is; its documents are then those read ahead of training.
    """

    name: str
    documents: tuple[Document, ...]
    stream: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of all documents together."""
        return sum(document.size for document in self.documents)

    @property
    def sha256(self) -> str:
        """Hash of all names and contents in hexadecimal; the order of the documents does not matter."""
        digests = sorted(document.digest for document in self.documents)
        return sha256(self.stream.encode() + b"".join(digests)).hexdigest()


def load_corpus(source: str, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """Load the UTF-8 texts that `source` names, sorted by name.

    `source` is one of

    - `"python-stdlib"`: the source of this Python's standard library without its tests;
    - `"python-functions"`: its functions, a document each, named `file.py::Class.method:line`; a text that occurs twice
      is one document, because a copy on both sides of the split would leak;
    - a file;
    - a folder: every file below it. Hidden files and folders are left out;
    - a glob such as `texts/**/*.txt`, with the shell's rules: `**` is any depth, `*` skips hidden names.

    Names are relative to the folder, or to the part of the glob before its first wildcard, so the same texts
    give the same corpus wherever they lie. A file that links make reachable twice is one document, because a
    copy on both sides of the split would leak. Empty files are left out. Where all the text is in one file, or
    a file is larger than `LONGEST_FILE`, it is cut after line ends into documents of about 16 KiB, named
    `file#00000`, `file#00001` and so on. A corpus larger than `IN_MEMORY` is checked and hashed block by block
    and stays in its files. `progress` is called with (bytes read, bytes in all).

    Raises ValueError if there is nothing at `source`, no file matches, all files are empty, or a file is
    binary (it has a NUL byte) or not UTF-8.
    """
    if source == STANDARD_FUNCTIONS:
        return _standard_functions(progress)
    root, names = _find(source)
    if not names:
        raise ValueError(f"No files match {source!r}: check the path, or give a glob such as 'texts/**/*.txt'.")
    sizes = {name: size for name in names if (size := (root / name).stat().st_size)}
    if not sizes:
        raise ValueError(f"Nothing to read in {source!r}: {len(names)} file(s) found, all empty; give some text.")
    return Corpus(source, tuple(_read(root, sizes, progress)))


def _standard_functions(progress: Callable[[int, int], None] | None) -> Corpus:
    seen: dict[str, Document] = {}
    for module in load_corpus(STANDARD_LIBRARY, progress).documents:
        for name, text in functions(module.content.decode()):
            seen.setdefault(text, Document(f"{module.name}::{name}", text.encode()))
    return Corpus(STANDARD_FUNCTIONS, tuple(seen.values()))


def _find(source: str) -> tuple[Path, list[str]]:
    """The folder that names are relative to, and the names of the files in it."""
    if source == STANDARD_LIBRARY:
        root = Path(sysconfig.get_paths()["stdlib"])
        return root, _matches(root, "**/*.py", without=_NOT_LIBRARY_SOURCE)
    path = Path(os.path.expanduser(source))  # noqa: PTH111 – unlike Path's, it leaves an unknown user's ~ as it is
    if source and path.is_file():
        return path.parent, [path.name]
    if source and path.is_dir():
        return path, _matches(path, "**/*")
    wildcards = [index for index, part in enumerate(path.parts) if glob.has_magic(part)]
    if not wildcards:
        raise ValueError(
            f"There is no file or folder {source!r} (looked for {path.absolute()}): give a path, a glob such as "
            f"'texts/**/*.txt', {STANDARD_LIBRARY!r}, {STANDARD_FUNCTIONS!r}, or dataset:NAME_OR_FOLDER."
        )
    root = Path(*path.parts[: wildcards[0]])
    return root, _matches(root, "/".join(path.parts[wildcards[0] :]))


def _matches(root: Path, pattern: str, without: frozenset[str] = frozenset()) -> list[str]:
    """Sorted names of the files below `root`, but for those in the folders `without`.

    Of several names that links give one file, the one with the fewest folders counts.
    """
    # Unlike Path.glob, this one skips hidden names as the shell does, and follows links to folders.
    found = map(PurePath, glob.glob(pattern, root_dir=root, recursive=True))  # noqa: PTH207
    names = [path.as_posix() for path in found if without.isdisjoint(path.parts) and (root / path).is_file()]
    names.sort(key=lambda name: (name.count("/"), name), reverse=True)
    return sorted({(root / name).resolve(): name for name in names}.values())


def _read(root: Path, sizes: dict[str, int], progress: Callable[[int, int], None] | None) -> Iterator[Document]:
    """The files as documents, each checked to be text."""
    total = sum(sizes.values())
    done = 0
    for name, size in sizes.items():
        path = root / name
        in_pieces = len(sizes) == 1 or size > LONGEST_FILE
        start = 0
        for index, content in enumerate(cut(blocks(path)) if in_pieces else [path.read_bytes()]):
            _check_text(path, content, start)
            text = content if total <= IN_MEMORY else FileText(path, start, len(content), sha256(content).digest())
            yield Document(f"{name}#{index:05}" if in_pieces else name, text)
            start += len(content)
            if progress is not None:
                progress(min(done + start, total), total)
        done += size


def _check_text(path: Path, content: bytes, start: int) -> None:
    """Raise ValueError unless the content, which begins at byte `start` of its file, is UTF-8 without NUL bytes."""
    advice = "leave it out with a glob such as 'texts/**/*.txt'"
    nul = content.find(b"\0")
    if nul >= 0:
        raise ValueError(f"{str(path)!r} is binary: NUL byte at offset {start + nul}; {advice}.")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not UTF-8: byte {content[error.start]:#04x} at offset {start + error.start}; "
            f"convert it, or {advice}."
        ) from error
