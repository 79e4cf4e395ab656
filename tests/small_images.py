"""Small labelled images, and folders of them as IDX files."""

import gzip
import struct
from pathlib import Path

import numpy as np

from twofold.tasks.image_set import LabelledImages


def labelled(count: int, classes: int, height: int = 5, width: int = 7, channels: int = 1, seed: int = 0):
    """Images of random pixels, no two alike, with classes of different sizes in a random order."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    labels = np.minimum(rng.integers(classes, size=count), rng.integers(classes, size=count))
    labels[:classes] = np.arange(classes)
    return LabelledImages(images, labels.astype(np.int64))


def idx_bytes(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_idx(path: Path, values: np.ndarray) -> Path:
    content = idx_bytes(values)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def idx_folder(folder: Path, end: str = "", **splits: LabelledImages) -> Path:
    """The files of `train` and `t10k` as they are named everywhere, each of one channel."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, images in splits.items():
        write_idx(folder / f"{name}-images-idx3-ubyte{end}", images.images[:, 0])
        write_idx(folder / f"{name}-labels-idx1-ubyte{end}", images.labels)
    return folder


def pixels_of(images: np.ndarray) -> list[bytes]:
    return [image.tobytes() for image in images]
