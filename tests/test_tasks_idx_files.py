"""IDX files: every value comes back, and nothing that is not one is read."""

import gzip

import numpy as np
import pytest

from small_images import idx_bytes, idx_folder, labelled, write_idx
from twofold.tasks.idx_files import idx_shape, read_idx
from twofold.tasks.image_set import ImageForm
from twofold.tasks.image_sources import IdxImages, ImageOptions, image_source

SHAPE = (3, 5, 7)


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
@pytest.mark.parametrize("shape", [(11,), SHAPE, (0, 5, 7), (2, 3, 5, 7)])
def test_values_come_back(tmp_path, name, shape):
    values = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    path = write_idx(tmp_path / name, values)
    read = read_idx(path, len(shape))
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, values)
    assert idx_shape(path, len(shape)) == shape


def test_more_than_is_read_at_once(tmp_path):
    values = np.random.default_rng(1).integers(0, 256, (3, 701, 1009), dtype=np.uint8)
    np.testing.assert_array_equal(read_idx(write_idx(tmp_path / "f.gz", values), 3), values)


def test_the_shape_is_read_without_the_values(tmp_path, values):
    path = tmp_path / "header"
    path.write_bytes(idx_bytes(values)[:16])
    assert idx_shape(path, 3) == SHAPE
    with pytest.raises(ValueError, match=r"should hold 105 values \(3 × 5 × 7\) and holds only 0"):
        read_idx(path, 3)


MALFORMED = {
    "nothing": (lambda b: b"", "begins with nothing"),
    "three bytes": (lambda b: b[:3], "begins with 00 00 08"),
    "no zeros": (lambda b: b"\x00\x01" + b[2:], "begins with 00 01 08 03"),
    "integers": (lambda b: b[:2] + b"\x0c" + b[3:], "values of type 0x0c"),
    "two dimensions": (lambda b: b[:3] + b"\x02" + b[4:], r"2 dimension\(s\) where 3 belong"),
    "half a header": (lambda b: b[:13], "within its header, after 13 of 16 bytes"),
    "one value less": (lambda b: b[:-1], "105 values .* holds only 104"),
    "one value more": (lambda b: b + b"\x00", "105 values .* holds more"),
    "a huge size": (lambda b: b[:4] + b"\xff" * 12 + b[16:], "79228162458924105385300197375 values .* only 105"),
}


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_such_file_is_refused(tmp_path, values, case, name):
    spoil, message = MALFORMED[case]
    content = spoil(idx_bytes(values))
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if path.suffix else content)
    with pytest.raises(ValueError, match=message) as error:
        read_idx(path, 3)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spoil", [lambda b: b[:-9], lambda b: b[5:], lambda b: b[:-12] + b"wrong sum!!!"])
def test_spoilt_gzip_is_refused(tmp_path, values, spoil):
    path = tmp_path / "f.gz"
    path.write_bytes(spoil(gzip.compress(idx_bytes(values))))
    with pytest.raises(ValueError, match=r"Cannot read .*f\.gz"):
        read_idx(path, 3)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"Cannot read .*absent"):
        read_idx(tmp_path / "absent", 1)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_folder_of_four_files(tmp_path, end):
    train, test = labelled(23, 3), labelled(11, 3, seed=1)
    source = image_source(f"idx:{idx_folder(tmp_path, end, train=train, t10k=test)}", ImageOptions())
    read = source.read()
    assert source.form == read.form == ImageForm(1, 5, 7, 3)
    assert read.validation is None
    for got, wanted in ((read.training, train), (read.test, test)):
        np.testing.assert_array_equal(got.images, wanted.images)
        np.testing.assert_array_equal(got.labels, wanted.labels)
        assert got.labels.dtype == np.int64


def test_a_folder_without_test_images(tmp_path):
    assert IdxImages(idx_folder(tmp_path, train=labelled(23, 3))).read().test is None


def test_files_that_do_not_agree(tmp_path):
    train = labelled(23, 3)
    folder = idx_folder(tmp_path, train=train, t10k=labelled(11, 5))
    with pytest.raises(ValueError, match="t10k label 4, and classes 0 to 2"):
        IdxImages(folder).read()
    idx_folder(folder, t10k=labelled(11, 3, height=6))
    with pytest.raises(ValueError, match=r"t10k images in .* are \(6, 7\) and not \(5, 7\)"):
        IdxImages(folder).read()
    (folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(ValueError, match=r"no t10k-images-idx3-ubyte in .*, plain or \.gz"):
        IdxImages(folder).read()
    write_idx(folder / "train-labels-idx1-ubyte", train.labels[:-2])
    with pytest.raises(ValueError, match="23 train images and 21 labels"):
        IdxImages(folder).read()


def test_mnist_from_a_folder(tmp_path):
    train = labelled(29, 10, height=28, width=28)
    source = image_source(f"mnist:{idx_folder(tmp_path, '.gz', train=train)}", ImageOptions())
    np.testing.assert_array_equal(source.read().training.images, train.images)
    idx_folder(tmp_path, ".gz", train=labelled(29, 10))
    with pytest.raises(ValueError, match=r"are \(5, 7\) and not \(28, 28\)"):
        source.read()


@pytest.mark.parametrize(("name", "advice"), [("fashion-mnist", "apt-get install"), ("mnist", "put its four files")])
def test_where_to_get_files_that_are_not_there(tmp_path, monkeypatch, name, advice):
    monkeypatch.setattr("twofold.tasks.image_sources._SYSTEM_FOLDER", tmp_path)
    source = image_source(name, ImageOptions())
    assert source.form == ImageForm(1, 28, 28, 10)
    with pytest.raises(ValueError, match=f"no train-images-idx3-ubyte in {tmp_path / name}.*{advice}.*{name}:FOLDER"):
        source.read()
