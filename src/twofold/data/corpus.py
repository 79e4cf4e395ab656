"""Text corpora: named documents, from the standard library's source, a file, a folder or a glob."""

import glob
import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePath

STANDARD_LIBRARY = "python-stdlib"
"""The default corpus: every machine that runs this program has it (facts: 12.1 MB for Python 3.11)."""

PIECE_BYTES = 16 * 1024
"""A corpus that is one file is cut into pieces of about this size, so that some of them can be held out."""

_NOT_LIBRARY_SOURCE = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class Document:
    """One text: a name that is relative to its corpus, and its bytes."""

    name: str
    content: bytes

    @property
    def digest(self) -> bytes:
        """SHA-256 of name and content; each is hashed first, so that no byte can move from one to the other."""
        return sha256(sha256(self.name.encode()).digest() + sha256(self.content).digest()).digest()


@dataclass(frozen=True)
class Corpus:
    """Documents under one name: the source that they were loaded from."""

    name: str
    documents: tuple[Document, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all documents together."""
        return sum(len(document.content) for document in self.documents)

    @property
    def sha256(self) -> str:
        """Hash of all names and contents in hexadecimal; the order of the documents does not matter."""
        return sha256(b"".join(sorted(document.digest for document in self.documents))).hexdigest()


def load_corpus(source: str) -> Corpus:
    """Load the UTF-8 texts that `source` names, sorted by name.

    `source` is one of

    - `"python-stdlib"`: the source of this Python's standard library without its tests;
    - a file;
    - a folder: every file below it. Hidden files and folders are left out;
    - a glob such as `texts/**/*.txt`, with the shell's rules: `**` is any depth, `*` skips hidden names.

    Names are relative to the folder, or to the part of the glob before its first wildcard, so the same texts
    give the same corpus wherever they lie. A file that links make reachable twice is one document, because a
    copy on both sides of the split would leak. Empty files are left out. Where all the text is in one file,
    it is cut after line ends into documents of about 16 KiB, named `file#00000`, `file#00001` and so on.

    Raises ValueError if there is nothing at `source`, no file matches, all files are empty, or a file is
    binary (it has a NUL byte) or not UTF-8.
    """
    root, names = _find(source)
    if not names:
        raise ValueError(f"No files match {source!r}: check the path, or give a glob such as 'texts/**/*.txt'.")
    documents = [document for document in _read(root, names) if document.content]
    if not documents:
        raise ValueError(f"Nothing to read in {source!r}: {len(names)} file(s) found, all empty; give some text.")
    if len(documents) == 1:
        documents = _pieces(documents[0])
    return Corpus(source, tuple(documents))


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
            f"'texts/**/*.txt', or {STANDARD_LIBRARY!r}."
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


def _read(root: Path, names: Iterable[str]) -> list[Document]:
    """The files as documents, each checked to be text."""
    documents = []
    for name in names:
        content = (root / name).read_bytes()
        _check_text(root / name, content)
        documents.append(Document(name, content))
    return documents


def _check_text(path: Path, content: bytes) -> None:
    """Raise ValueError unless the content is UTF-8 without NUL bytes."""
    advice = "leave it out with a glob such as 'texts/**/*.txt'"
    nul = content.find(b"\0")
    if nul >= 0:
        raise ValueError(f"{str(path)!r} is binary: NUL byte at offset {nul}; {advice}.")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}; "
            f"convert it, or {advice}."
        ) from error


def _pieces(document: Document) -> list[Document]:
    """Cut after the first line end at or beyond each `PIECE_BYTES` bytes; the last piece may be shorter."""
    pieces: list[Document] = []
    start = 0
    while start < len(document.content):
        line_end = document.content.find(b"\n", start + PIECE_BYTES - 1)
        stop = len(document.content) if line_end < 0 else line_end + 1
        pieces.append(Document(f"{document.name}#{len(pieces):05}", document.content[start:stop]))
        start = stop
    return pieces
