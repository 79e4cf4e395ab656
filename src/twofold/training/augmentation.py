"""What training images undergo before a step: kornia's random transformations, under a seed of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twofold.tasks.task import Augmentation

if TYPE_CHECKING:
    from torch.nn import Module


def augment(images_BCHW: Tensor, names: Sequence[Augmentation], seed: int) -> Tensor:
    """Images in 0 to 1, float32 [B, channels, height, width], transformed each in its own way, in the names' order.

    `crop`: an eighth of the side as a black border, and a random cut of the old size. `flip`: left and right
    exchanged, of half of the images. `rotate`: up to 15 degrees. `erase`: a black rectangle of 2 to 20 % of the image,
    on half of them (random erasing, arXiv 1708.04896). Equal seeds do equal things, on a CPU's random numbers;
    torch's global random state is neither read nor changed. ValueError where kornia is not installed.
    """
    if not names:
        return images_BCHW
    chain = [_transformation(name, *images_BCHW.shape[2:]) for name in names]
    # Not `manual_seed`, which seeds all GPUs also: kornia draws on the CPU.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for transformation in chain:
            images_BCHW = transformation(images_BCHW)
    return images_BCHW


def _transformation(name: Augmentation, height: int, width: int) -> Module:
    try:
        from kornia import augmentation
    except ImportError as error:
        raise ValueError("Augmentation needs kornia: pip install 'twofold[vision]'") from error
    if name == "crop":
        border = (max(1, height // 8), max(1, width // 8))
        return augmentation.RandomCrop((height, width), padding=border)
    if name == "flip":
        return augmentation.RandomHorizontalFlip(p=0.5)
    if name == "rotate":
        return augmentation.RandomRotation(15.0, p=1.0)
    return augmentation.RandomErasing(p=0.5, scale=(0.02, 0.2))
