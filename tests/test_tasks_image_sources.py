"""Images by name: digits, folders and datasets give the pixels and classes that were put in."""

import sys
from dataclasses import replace

import datasets
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from small_images import labelled
from twofold.tasks import image_sources
from twofold.tasks.image_set import ImageForm
from twofold.tasks.image_sources import HUB, ImageOptions, image_source

pytestmark = pytest.mark.usefixtures("own_datasets")

NONE = ImageOptions()
NAMES = ("ant", "bee", "cow")


def picture(image):
    """An array [channels, height, width] as Pillow's image."""
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


def folder_of(path, images, names=NAMES):
    for index, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
        (path / names[label]).mkdir(parents=True, exist_ok=True)
        picture(image).save(path / names[label] / f"{index:03}.png")
    return path


def by_class(images):
    """In the order of a folder: class by class."""
    return images.at(np.argsort(images.labels, kind="stable"))


def rows_of(images, image="image", label="label", classes=3, **more):
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(num_classes=classes), **more})
    columns = {image: [picture(one) for one in images.images], label: images.labels.tolist()}
    columns |= {name: images.labels.tolist() for name in more}
    return datasets.Dataset.from_dict(columns, features=features)


def saved(path, **splits):
    datasets.DatasetDict(splits).save_to_disk(path)
    return path


def assert_same(got, wanted):
    np.testing.assert_array_equal(got.images, wanted.images)
    np.testing.assert_array_equal(got.labels, wanted.labels)
    assert (got.images.dtype, got.labels.dtype) == (np.uint8, np.int64)


def test_digits_use_the_whole_range():
    source = image_source("digits", NONE)
    read = source.read()
    assert source.form == ImageForm(1, 8, 8, 10)
    assert (len(read.training), read.validation, read.test) == (1797, None, None)
    theirs = load_digits()
    np.testing.assert_array_equal(np.rint(read.training.images[:, 0] / 255 * 16), theirs.images)
    np.testing.assert_array_equal(read.training.labels, theirs.target)
    assert (read.training.images.min(), read.training.images.max()) == (0, 255)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_by_class(tmp_path, channels):
    images = labelled(23, 3, channels=channels)
    source = image_source(f"folder:{folder_of(tmp_path, images)}", NONE)
    (tmp_path / "bee" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    assert source.form == ImageForm(channels, 5, 7, 3)
    read = source.read()
    assert_same(read.training, by_class(images))
    assert read.validation is None
    assert read.test is None


def test_a_folder_in_splits(tmp_path):
    parts = {name: labelled(13, 3, seed=seed) for seed, name in enumerate(("train", "val", "test"))}
    for name, images in parts.items():
        folder_of(tmp_path / name, images)
    read = image_source(f"folder:{tmp_path}", NONE).read()
    for got, name in ((read.training, "train"), (read.validation, "val"), (read.test, "test")):
        assert_same(got, by_class(parts[name]))
    (tmp_path / "test" / "dog").mkdir()
    with pytest.raises(ValueError, match=r"classes that are not in .*train: dog"):
        image_source(f"folder:{tmp_path}", NONE).read()


def test_a_folder_of_other_sizes_and_colours(tmp_path):
    folder_of(tmp_path, labelled(9, 3))
    Image.new("RGB", (7, 5), (255, 0, 0)).save(tmp_path / "cow" / "x.png")
    with pytest.raises(ValueError, match=r"x.png has colours and the first image is grey"):
        image_source(f"folder:{tmp_path}", NONE).read()
    for channels in (1, 3):
        read = image_source(f"folder:{tmp_path}", ImageOptions(channels=channels)).read()
        assert read.form == ImageForm(channels, 5, 7, 3)
        red = [255, 0, 0] if channels == 3 else [76]
        np.testing.assert_array_equal(read.training.images[-1, :, 0, 0], red)
    Image.new("L", (11, 13), 99).save(tmp_path / "cow" / "x.png")
    with pytest.raises(ValueError, match=r"x.png has 11x13 pixels and the first image 7x5"):
        image_source(f"folder:{tmp_path}", NONE).read()
    sized = image_source(f"folder:{tmp_path}", ImageOptions(size=6))
    assert sized.form == ImageForm(1, 6, 6, 3)
    np.testing.assert_array_equal(sized.read().training.images[-1], np.full((1, 6, 6), 99))


def test_folders_that_cannot_be_read(tmp_path):
    def read():
        return image_source(f"folder:{tmp_path / 'f'}", NONE).read()

    with pytest.raises(ValueError, match="There is no folder"):
        read()
    (tmp_path / "f" / "ant").mkdir(parents=True)
    with pytest.raises(ValueError, match="needs a sub-folder for each class, and has 1"):
        read()
    folder_of(tmp_path / "f", labelled(9, 3))
    (tmp_path / "f" / "dog").mkdir()
    with pytest.raises(ValueError, match="dog has no image"):
        read()
    broken = tmp_path / "f" / "dog" / "x.png"
    for content in (b"nothing of the kind", (tmp_path / "f" / "ant" / "000.png").read_bytes()[:40]):
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=r"Cannot read .*dog/x.png"):
            read()
    Image.fromarray(np.zeros((5, 7), np.uint16)).save(broken)
    with pytest.raises(ValueError, match=r"more than eight bits per value \(mode I;16\)"):
        read()


def test_a_saved_dataset(tmp_path):
    parts = {name: labelled(11, 3, seed=seed, channels=3) for seed, name in enumerate(("train", "valid", "test"))}
    folder = saved(tmp_path / "d", **{name: rows_of(images) for name, images in parts.items()})
    source = image_source(f"dataset:{folder}", NONE)
    assert source.form == ImageForm(3, 5, 7, 3)
    read = source.read()
    for got, name in ((read.training, "train"), (read.validation, "valid"), (read.test, "test")):
        assert_same(got, parts[name])


def test_one_split_and_parquet(tmp_path):
    images = labelled(13, 3)
    rows_of(images).save_to_disk(tmp_path / "one")
    assert_same(image_source(f"dataset:{tmp_path / 'one'}", NONE).read().training, images)
    (tmp_path / "files").mkdir()
    rows_of(images).to_parquet(tmp_path / "files" / "train-0.parquet")
    rows_of(images).to_parquet(tmp_path / "files" / "test-0.parquet")
    read = image_source(f"dataset:{tmp_path / 'files'}", NONE).read()
    assert_same(read.training, images)
    assert_same(read.test, images)


def test_columns_are_found_or_named(tmp_path):
    images = labelled(11, 3)
    two = rows_of(images, label="fine", coarse=datasets.ClassLabel(num_classes=7))
    folder = saved(tmp_path / "d", train=two)
    with pytest.raises(ValueError, match=r"2 ClassLabel columns, \['fine', 'coarse'\].*label_column"):
        image_source(f"dataset:{folder}", NONE).read()
    assert image_source(f"dataset:{folder}", ImageOptions(label_column="coarse")).form.classes == 7
    with pytest.raises(ValueError, match="no Image column 'fine'"):
        image_source(f"dataset:{folder}", ImageOptions(image_column="fine", label_column="fine")).read()


def test_rows_that_cannot_be_read(tmp_path):
    images = labelled(11, 3)
    folder = saved(
        tmp_path / "hidden", train=rows_of(images), test=rows_of(replace(images, labels=images.labels * 0 - 1))
    )
    assert image_source(f"dataset:{folder}", NONE).read().test is None
    spoilt = replace(images, labels=np.where(np.arange(11) == 5, -1, images.labels))
    folder = saved(tmp_path / "label", train=rows_of(spoilt))
    with pytest.raises(ValueError, match="row 5 has the class -1, and there are classes 0 to 2"):
        image_source(f"dataset:{folder}", NONE).read()
    folder = saved(tmp_path / "split", test=rows_of(images))
    with pytest.raises(ValueError, match="no rows in a split 'train', only in test"):
        image_source(f"dataset:{folder}", NONE).read()
    with pytest.raises(ValueError, match="there is no folder"):
        image_source(f"dataset:{tmp_path / 'absent'}", NONE).read()


def test_well_known_datasets(tmp_path, monkeypatch):
    for name, known in HUB.items():
        assert image_source(name, NONE).form == known.form
        with pytest.raises(ValueError, match=rf"Cannot read dataset:{known.name}") as error:
            image_source(name, NONE).read()
        assert "save_to_disk" in str(error.value)
    images = labelled(11, 3, height=64, width=64, channels=3)
    known = replace(HUB["tiny-imagenet"], name=str(saved(tmp_path / "d", train=rows_of(images, classes=200))))
    monkeypatch.setitem(image_sources.HUB, "tiny-imagenet", known)
    assert_same(image_source("tiny-imagenet", NONE).read().training, images)
    monkeypatch.setitem(image_sources.HUB, "tiny-imagenet", replace(known, form=ImageForm(3, 64, 64, 100)))
    with pytest.raises(ValueError, match=r"should have images like .*classes=100.* and has .*classes=200"):
        image_source("tiny-imagenet", NONE).read()


@pytest.mark.parametrize(("name", "module"), [("digits", "sklearn.datasets"), ("folder:.", "PIL.Image")])
def test_a_missing_library_is_named(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=r"pip install 'twofold\[vision\]'"):
        image_source(name, NONE).read()


@pytest.mark.parametrize("name", ["", "digit", "folder:", "idx:", "dataset:", "digits:/tmp"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match="There are no images called"):
        image_source(name, NONE)


@pytest.mark.parametrize("name", ["digits", "mnist", "idx:/tmp", "cifar10"])
def test_options_without_a_meaning(name):
    with pytest.raises(ValueError, match="size, label_column cannot be set"):
        image_source(name, ImageOptions(size=8, label_column="x"))
