"""Hugging Face datasets as text: from folders, by row, and with errors that say what to do."""

import builtins
import time
from hashlib import sha256
from pathlib import Path

import datasets
import pytest

from local_datasets import COLUMN, json_lines, parquet, saved, stories, texts_of
from twofold.data.dataset import DatasetRow, DatasetSource, load_rows
from twofold.data.split import split
from twofold.data.streams import DatasetStream
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise

pytestmark = pytest.mark.usefixtures("own_datasets")


KINDS = {"parquet": parquet, "json": json_lines, "saved": saved}


@pytest.fixture(scope="module", params=KINDS)
def source(request, tmp_path_factory):
    folder = KINDS[request.param](tmp_path_factory.mktemp(request.param) / "data")
    return DatasetSource(str(folder), column=COLUMN)


def rows_of(source):
    return stories(21 if next(iter(Path(source.name).glob("*.parquet")), None) else 23)


def test_every_text_is_a_document_named_by_its_row(source):
    rows = rows_of(source)
    corpus = load_rows(source)
    expected = {f"train#{index:08}": text.encode() for index, text in enumerate(rows) if text}
    assert {document.name: document.content for document in corpus.documents} == expected
    assert [document.size for document in corpus.documents] == [len(text) for text in texts_of(rows)]
    assert all(isinstance(document.text, DatasetRow) for document in corpus.documents)


def test_a_stream_gives_the_same_texts(source):
    assert list(DatasetStream(source)) == texts_of(rows_of(source))


def test_rows_are_split_hashed_and_tokenised_like_any_text(source):
    corpus = load_rows(source)
    training, held_out = split(corpus, 0.2)
    assert sorted(d.name for d in training + held_out) == [d.name for d in corpus.documents]
    stream = tokenise(training, BYTES)
    assert [BYTES.decode(stream.text(i)).encode() for i in range(len(training))] == [d.content for d in training]
    for document in corpus.documents:
        inner = sha256(document.name.encode()).digest() + sha256(document.content).digest()
        assert document.digest == sha256(inner).digest()


def test_the_hash_is_of_the_texts_wherever_they_lie(tmp_path):
    files = DatasetSource(str(json_lines(tmp_path / "a")), column=COLUMN)
    disk = DatasetSource(str(saved(tmp_path / "b")), column=COLUMN)
    assert load_rows(files).sha256 == load_rows(disk).sha256
    other = tmp_path / "c"
    json_lines(other)
    lines = (other / "train.jsonl").read_text().replace("Story 7", "Story 8")
    (other / "train.jsonl").write_text(lines)
    assert load_rows(DatasetSource(str(other), column=COLUMN)).sha256 != load_rows(files).sha256


def test_one_file_and_progress(tmp_path):
    told = []
    folder = json_lines(tmp_path)
    one = DatasetSource(str(folder / "train.jsonl"), column=COLUMN)
    assert len(load_rows(one, lambda *place: told.append(place)).documents) == len(texts_of(stories()))
    assert told[-1] == (23, 23)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column": "text"}, "has no column 'text': name one with data.column; there are story"),
        ({"split": "nope"}, "nope"),
        ({"subset": "nope", "name": "json"}, "nope"),
        ({"column": "n", "name": "parquet"}, "holds int in row 0 and no text"),
        ({"name": "/no/such/folder"}, "there is no file or folder /no/such/folder"),
        ({"name": "./no"}, "there is no file or folder"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_not_there_is_told_in_one_line(tmp_path, change, message, streaming):
    name = change.get("name", "saved")
    place = str(KINDS[name](tmp_path / "data")) if name in KINDS else name
    source = DatasetSource(**{"column": COLUMN, **change, "name": place})
    with pytest.raises(ValueError, match=message) as error:
        list(DatasetStream(source)) if streaming else load_rows(source)
    assert "\n" not in str(error.value)
    assert place in str(error.value)


@pytest.mark.parametrize("streaming", [False, True])
def test_without_a_network_it_says_how_to_do_without(streaming):
    source = DatasetSource("nobody/no-such-dataset")
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"save_to_disk\(FOLDER\)\) and give dataset:/path/to/folder") as error:
        DatasetStream(source) if streaming else load_rows(source)
    assert time.monotonic() - started < 20
    assert "\n" not in str(error.value)


def test_rows_without_text(tmp_path):
    datasets.Dataset.from_dict({COLUMN: ["", None]}).save_to_disk(tmp_path)
    with pytest.raises(ValueError, match=r"2 row\(s\), and none with text in 'story'"):
        load_rows(DatasetSource(str(tmp_path), column=COLUMN))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_saved_dataset_without_rows(tmp_path, streaming):
    datasets.Dataset.from_dict({COLUMN: []}).save_to_disk(tmp_path)
    source = DatasetSource(str(tmp_path), column=COLUMN)
    with pytest.raises(ValueError, match=f"^Cannot read dataset:{tmp_path}, split train: it has no rows"):
        DatasetStream(source) if streaming else load_rows(source)


@pytest.mark.parametrize("streaming", [False, True])
def test_damaged_pages_are_told_in_one_line(tmp_path, streaming):
    damaged = sorted(parquet(tmp_path).glob("*.parquet"))[1]
    content = bytearray(damaged.read_bytes())
    content[4 : len(content) // 3] = bytes(byte ^ 0xFF for byte in content[4 : len(content) // 3])
    damaged.write_bytes(content)
    source = DatasetSource(str(tmp_path), column=COLUMN)
    with pytest.raises(ValueError, match=f"^Cannot read dataset:{tmp_path}, split train: .") as error:
        list(DatasetStream(source)) if streaming else load_rows(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [saved, parquet])
def test_a_revision_is_of_the_hub(tmp_path, make):
    source = DatasetSource(str(make(tmp_path)), column=COLUMN, revision="main")
    with pytest.raises(ValueError, match=r"only the hub has revisions.* leave data\.revision out"):
        load_rows(source)


def test_without_the_library(monkeypatch):
    known = builtins.__import__

    def missing(name, *arguments, **keywords):
        if name == "datasets":
            raise ImportError(name)
        return known(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match=r"pip install 'twofold\[datasets\]'"):
        load_rows(DatasetSource("any"))
