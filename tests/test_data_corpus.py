import sysconfig
from collections import Counter
from pathlib import Path, PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twofold.data.corpus import Corpus, Document, load_corpus
from twofold.data.file_text import PIECE_BYTES, FileText, cut
from twofold.data.split import split

DOCUMENTS = st.builds(Document, st.text(max_size=5), st.binary(max_size=7))


def write(folder: Path, **contents: bytes) -> None:
    """Files by name; `__` in a name stands for a folder's slash and `_dot_` for a dot."""
    for name, content in contents.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def as_dict(corpus: Corpus) -> dict[str, bytes]:
    return {document.name: document.content for document in corpus.documents}


def test_the_standard_library_is_the_default_corpus():
    corpus = load_corpus("python-stdlib")
    names = [document.name for document in corpus.documents]
    assert names == sorted(set(names))
    assert "argparse.py" in names
    assert "json/decoder.py" in names
    assert not {"test", "tests", "idle_test", "site-packages"} & {
        part for name in names for part in PurePath(name).parts
    }
    assert corpus.bytes > 5_000_000
    library = Path(sysconfig.get_paths()["stdlib"])
    assert as_dict(corpus)["argparse.py"] == (library / "argparse.py").read_bytes()


def test_a_folder_gives_its_visible_non_empty_files_by_relative_name(tmp_path):
    write(
        tmp_path,
        b_dot_txt="zwei ß\n".encode(),
        a_dot_py=b"one",
        deep__er__c_dot_txt=b"three",
        empty_dot_txt=b"",
        _dot_hidden=b"no",
        _dot_git__config=b"no",
    )
    assert as_dict(load_corpus(str(tmp_path))) == {
        "a.py": b"one",
        "b.txt": "zwei ß\n".encode(),
        "deep/er/c.txt": b"three",
    }


def test_a_glob_chooses_files_and_names_them_from_its_first_wildcard(tmp_path):
    write(tmp_path, x__a_dot_txt=b"1", x__y__b_dot_txt=b"2", x__c_dot_md=b"3", z__d_dot_txt=b"4")
    assert as_dict(load_corpus(f"{tmp_path}/**/*.txt")) == {"x/a.txt": b"1", "x/y/b.txt": b"2", "z/d.txt": b"4"}
    assert as_dict(load_corpus(f"{tmp_path}/x/*.*")) == {"a.txt": b"1", "c.md": b"3"}


def test_a_relative_glob_and_a_home_folder_work(tmp_path, monkeypatch):
    write(tmp_path, a_dot_txt=b"1", b_dot_txt=b"2")
    expected = {"a.txt": b"1", "b.txt": b"2"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_dict(load_corpus("*.txt")) == as_dict(load_corpus("~")) == as_dict(load_corpus("~/*.txt")) == expected


def test_a_path_that_exists_is_no_glob(tmp_path):
    write(tmp_path / "[ab]", a_dot_txt=b"1", b_dot_txt=b"2")
    assert as_dict(load_corpus(f"{tmp_path}/[ab]")) == {"a.txt": b"1", "b.txt": b"2"}


def test_a_file_that_links_make_reachable_twice_is_one_document(tmp_path):
    write(tmp_path, sub__z_dot_txt=b"1", a_dot_txt=b"2")
    (tmp_path / "sub" / "back").symlink_to(tmp_path)
    (tmp_path / "b.txt").symlink_to("a.txt")
    assert as_dict(load_corpus(str(tmp_path))) == {"sub/z.txt": b"1", "a.txt": b"2"}


def test_the_hash_tells_of_texts_not_of_where_they_lie(tmp_path):
    for folder in ("here", "there/deep", "other"):
        write(tmp_path / folder, a_dot_txt=b"1", b_dot_txt=b"2")
    write(tmp_path / "other", b_dot_txt=b"3")
    here, there, other = (load_corpus(str(tmp_path / name)) for name in ("here", "there/deep", "other"))
    assert here.sha256 == there.sha256 != other.sha256


@given(st.lists(DOCUMENTS, max_size=5), st.lists(DOCUMENTS, max_size=5))
def test_equal_hashes_mean_equal_documents(first, second):
    same_hash = Corpus("a", tuple(first)).sha256 == Corpus("b", tuple(second)).sha256
    assert same_hash == (Counter(first) == Counter(second))
    assert Corpus("a", tuple(first)).sha256 == Corpus("a", tuple(reversed(first))).sha256


def test_bytes_cannot_move_between_name_and_content_unnoticed():
    assert Document("ab", b"c").digest != Document("a", b"bc").digest


def test_text_in_one_file_is_cut_into_pieces(tmp_path):
    text = b"".join(b"%d\n" % number for number in range(9973))
    write(tmp_path, book_dot_txt=text, other__empty_dot_txt=b"")
    alone, among_empty = load_corpus(f"{tmp_path}/book.txt"), load_corpus(str(tmp_path))
    assert [document.name for document in alone.documents] == ["book.txt#00000", "book.txt#00001", "book.txt#00002"]
    assert alone.documents == among_empty.documents
    assert b"".join(document.content for document in alone.documents) == text
    assert alone.bytes == len(text)


@given(st.lists(st.integers(0, 2 * PIECE_BYTES), max_size=7), st.booleans())
@example([PIECE_BYTES - 1, 3], True)
def test_pieces_are_whole_lines_of_the_text_and_no_longer_than_they_must_be(line_lengths, ends_with_line):
    text = b"\n".join(b"x" * length for length in line_lengths) + b"\n" * ends_with_line
    pieces = list(cut([text]))
    assert b"".join(pieces) == text
    for piece in pieces[:-1]:
        assert piece.endswith(b"\n")
        assert len(piece) >= PIECE_BYTES
    for piece in pieces:
        assert b"\n" not in piece[PIECE_BYTES - 1 : -1]


@given(st.lists(st.text(alphabet="aß日𝄞", max_size=30), max_size=9), st.integers(1, 7), st.integers(9, 23))
def test_pieces_do_not_depend_on_how_the_text_is_read_and_end_in_no_character(lines, part, longest):
    text = "\n".join(lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twofold.data.file_text.PIECE_BYTES", 7)
        patch.setattr("twofold.data.file_text.LONGEST_PIECE", longest)
        pieces = list(cut([text]))
        assert list(cut(text[at : at + part] for at in range(0, len(text), part))) == pieces
    assert b"".join(pieces) == text
    for piece in pieces:
        assert piece.decode().encode() == piece
        assert len(piece) <= longest
    for piece in pieces[:-1]:
        assert piece.endswith(b"\n") or len(piece) > longest - 4


def test_a_corpus_that_stays_in_its_files_is_the_same_corpus(tmp_path, monkeypatch):
    lines = b"".join(b"%d na\xc3\xafve\n" % number for number in range(7919))
    write(tmp_path, a__book_dot_txt=lines, b_dot_txt=lines[:1003], c_dot_txt=b"")
    sources = [f"{tmp_path}/a/book.txt", str(tmp_path)]
    held = [load_corpus(source) for source in sources]
    monkeypatch.setattr("twofold.data.corpus.IN_MEMORY", 900)
    monkeypatch.setattr("twofold.data.file_text.BLOCK_BYTES", 1013)
    told = []
    left = [load_corpus(source, lambda *place: told.append(place)) for source in sources]
    for one, other in zip(held, left, strict=True):
        assert all(isinstance(document.text, FileText) for document in other.documents)
        assert as_dict(one) == as_dict(other)
        assert (one.sha256, one.bytes) == (other.sha256, other.bytes)
        sides = zip(split(one, 0.1), split(other, 0.1), strict=True)
        assert all([d.name for d in here] == [d.name for d in there] for here, there in sides)
    assert told[-1] == (len(lines) + 1003, len(lines) + 1003)


def test_a_large_file_is_cut_also_among_others(tmp_path, monkeypatch):
    monkeypatch.setattr("twofold.data.corpus.LONGEST_FILE", 2 * PIECE_BYTES)
    large = b"x" * 99 + b"\n"
    write(tmp_path, large_dot_txt=large * 400, small_dot_txt=b"small")
    found = as_dict(load_corpus(str(tmp_path)))
    assert list(found) == ["large.txt#00000", "large.txt#00001", "large.txt#00002", "small.txt"]
    assert b"".join(found[name] for name in list(found)[:3]) == large * 400


def test_a_file_that_changes_while_it_is_used_is_told(tmp_path, monkeypatch):
    write(tmp_path, a_dot_txt=b"one text", b_dot_txt=b"another")
    monkeypatch.setattr("twofold.data.corpus.IN_MEMORY", 3)
    first, second = load_corpus(str(tmp_path)).documents
    write(tmp_path, a_dot_txt=b"two text")
    with pytest.raises(ValueError, match=r"a\.txt' has changed since it was loaded"):
        _ = first.content
    assert second.content == b"another"


def test_a_fault_far_into_a_large_file_has_its_offset(tmp_path):
    good = b"good line\n" * 3000
    write(tmp_path, a_dot_txt=good + b"caf\xe9!\n")
    with pytest.raises(ValueError, match=f"byte 0xe9 at offset {len(good) + 3}"):
        load_corpus(f"{tmp_path}/a.txt")
    write(tmp_path, a_dot_txt=good + b"\0")
    with pytest.raises(ValueError, match=f"NUL byte at offset {len(good)}"):
        load_corpus(f"{tmp_path}/a.txt")


@pytest.mark.parametrize("source", ["", "no/such/folder", "python-stdlb"])
def test_a_source_that_is_not_there_is_an_error(source):
    with pytest.raises(ValueError, match="There is no file or folder") as error:
        load_corpus(source)
    assert repr(source) in str(error.value)


@pytest.mark.parametrize(
    ("files", "pattern", "message"),
    [
        ({}, "", "No files match"),
        ({"_dot_hidden": b"text"}, "", "No files match"),
        ({"a_dot_txt": b"text"}, "/*.md", "No files match"),
        ({"a_dot_txt": b"", "b_dot_txt": b""}, "", r"2 file\(s\) found, all empty"),
        ({"a_dot_txt": b""}, "/a.txt", r"1 file\(s\) found, all empty"),
        ({"a_dot_txt": b"good", "b_dot_bin": b"abc\0d"}, "", r"b\.bin' is binary: NUL byte at offset 3"),
        ({"a_dot_txt": b"good", "b_dot_txt": b"caf\xe9!"}, "", r"b\.txt' is not UTF-8: byte 0xe9 at offset 3"),
        ({"a_dot_txt": "café".encode()[:-1]}, "/a.txt", r"a\.txt' is not UTF-8: byte 0xc3 at offset 3"),
    ],
)
def test_unusable_files_are_one_line_errors_that_name_them(tmp_path, files, pattern, message):
    write(tmp_path, **files)
    with pytest.raises(ValueError, match=message) as error:
        load_corpus(f"{tmp_path}{pattern}")
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
