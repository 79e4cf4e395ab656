"""Labelled files: bytes come back as they were, splits follow from contents, and faults are named."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_splits import check_splits, rows
from twofold.data.byte_tokens import END, decode_text
from twofold.tasks.task import Head
from twofold.tasks.text_files import LabelledFilesTask


def write(folder, **classes):
    """A sub-folder for each class, with a file for each of its texts."""
    for name, texts in classes.items():
        (folder / name).mkdir(parents=True)
        for number, text in enumerate(texts):
            (folder / name / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


def numbered(kind: str, count: int) -> list[str]:
    return [f"{number} – {kind}" for number in range(count)]


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "texts", neg=numbered("poor", 23), pos=numbered("fine", 31))


def small(folder, **settings) -> LabelledFilesTask:
    return LabelledFilesTask(**{"folder": str(folder), "length": 37, **settings})


def texts_of(examples) -> dict[str, int]:
    return dict(zip([decode_text(tokens) for tokens in examples.inputs], examples.labels.tolist(), strict=True))


def test_every_text_is_in_one_split_with_its_class(folder):
    spec = small(folder)
    splits = spec.load()
    check_splits(spec, splits)
    everything = {}
    for examples in (splits.training, splits.validation, splits.test):
        everything |= texts_of(examples)
    assert everything == dict.fromkeys(numbered("poor", 23), 0) | dict.fromkeys(numbered("fine", 31), 1)
    assert spec.class_names == ("neg", "pos")
    assert spec.form.head is Head.WHOLE
    assert spec.form.padding == END


@settings(max_examples=15, deadline=None)
@given(validation=st.floats(0.02, 0.45), test=st.floats(0.02, 0.45))
def test_shares_hold_in_each_class(tmp_path_factory, validation, test):
    folder = write(tmp_path_factory.mktemp("texts") / "all", a=numbered("a", 41), b=numbered("b", 53))
    splits = small(folder, validation=validation, test=test).load()
    for share, examples in ((validation, splits.validation), (test, splits.test)):
        for label, count in ((0, 41), (1, 53)):
            assert share * count <= np.count_nonzero(examples.labels == label) < share * count + 1
    shutil.rmtree(folder)


def test_names_of_files_and_folders_decide_nothing(folder, tmp_path):
    for path in (tmp_path / "texts").glob("*/*.txt"):
        (tmp_path / "other" / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "other" / path.parent.name / f"x{hash(path)}.txt")
    assert small(tmp_path / "other").load().fingerprint == small(folder).load().fingerprint
    assert small(folder, data_seed=1).load().fingerprint != small(folder).load().fingerprint


def test_a_new_file_moves_no_other_between_training_and_test(folder):
    before = small(folder).load()
    (folder / "pos" / "new.txt").write_text("one more")
    after = small(folder).load()
    assert len(set(rows(before)) - set(rows(after))) == 0
    moved = set(texts_of(before.test)) & set(texts_of(after.training))
    assert len(moved) <= 1  # the one that the new text takes the place of


def test_texts_are_cut_and_padded(tmp_path):
    folder = write(tmp_path, a=["é" * 40, "a", "b"], b=["c", "d", "e"])
    splits = small(folder, length=7).load()
    found = {bytes(row[row != END].astype(np.uint8)) for row in np.concatenate([e.inputs for e in parts(splits)])}
    assert found == {("é" * 40).encode()[:7], b"a", b"b", b"c", b"d", b"e"}


def parts(splits):
    return (splits.training, splits.validation, splits.test)


def test_train_and_test_folders_are_kept_apart(tmp_path):
    write(tmp_path / "train", neg=numbered("poor", 17), pos=numbered("fine", 19))
    write(tmp_path / "test", neg=["bad", *numbered("poor", 2)], pos=["good"])
    spec = small(tmp_path)
    splits = spec.load()
    check_splits(spec, splits)
    # What lies in both is test only.
    assert texts_of(splits.test) == {"bad": 0, "0 – poor": 0, "1 – poor": 0, "good": 1}
    assert len(splits.training) + len(splits.validation) == 17 + 19 - 2
    assert np.bincount(splits.validation.labels).tolist() == [2, 2]


def test_a_folder_without_labels_is_left_out_by_name(tmp_path):
    write(tmp_path / "train", neg=numbered("poor", 5), pos=numbered("fine", 5), unsup=numbered("any", 5))
    write(tmp_path / "test", neg=["bad"], pos=["good"])
    with pytest.raises(ValueError, match=r"train \(neg, pos, unsup\) than in test \(neg, pos\): name"):
        small(tmp_path).load()
    spec = small(tmp_path, classes=("pos", "neg"))
    assert texts_of(spec.load().test) == {"good": 0, "bad": 1}
    with pytest.raises(ValueError, match="no sub-folder 'other', only neg, pos, unsup"):
        _ = small(tmp_path, classes=("pos", "other")).form


def test_equal_texts_count_once(tmp_path):
    folder = write(tmp_path, a=["same beginning, one", "same beginning, two", *numbered("a", 5)], b=numbered("b", 5))
    assert sum(map(len, parts(small(folder).load()))) == 12
    assert sum(map(len, parts(small(folder, length=14).load()))) == 11


def test_equal_texts_of_two_classes_are_refused(tmp_path):
    folder = write(tmp_path, a=["same", *numbered("a", 5)], b=["same", *numbered("b", 5)])
    with pytest.raises(ValueError, match=r"a/0.txt' and '.*b/0.txt' begin with the same 4 bytes"):
        small(folder).load()


def test_faults_are_named(folder, tmp_path):
    with pytest.raises(ValueError, match=r"There is no folder '.*nowhere'"):
        small(tmp_path / "nowhere").load()
    with pytest.raises(ValueError, match="two or more and each once, and there are 1: neg"):
        small(folder, classes=("neg",)).load()
    with pytest.raises(ValueError, match="there are 0: none"):
        small(folder / "neg").load()
    with pytest.raises(ValueError, match="leave nothing to train on"):
        small(folder, validation=0.5, test=0.5)
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' has no .txt file"):
        small(folder).load()


def test_faults_of_files_are_named(folder):
    odd = folder / "pos" / "odd.txt"
    odd.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"odd.txt' is not UTF-8 \(byte 3\)"):
        small(folder).load()
    odd.write_bytes(b"")
    with pytest.raises(ValueError, match=r"odd.txt' is empty"):
        small(folder).load()


def test_too_few_files_are_refused(tmp_path):
    folder = write(tmp_path, a=numbered("a", 9), few=["one", "two"])
    with pytest.raises(ValueError, match=r"'few' of .* has 2 different text.* once 2 are held out"):
        small(folder).load()
    (folder / "few" / "3.txt").write_text("three")
    assert [np.count_nonzero(e.labels) for e in parts(small(folder).load())] == [1, 1, 1]
