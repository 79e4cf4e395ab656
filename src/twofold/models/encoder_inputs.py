"""How the encoder's inputs become vectors of its width: tokens by a table, features and image patches by a matrix."""

from __future__ import annotations

from torch import Tensor, nn

from twofold.models.encoder_configuration import TwofoldEncoderConfig

ARGUMENTS = {
    "tokens": "input_ids",
    "features": "features",
    "images": "pixel_values",
    "embeddings": "inputs_embeds",
}
"""What an encoder reads → the argument that gives it."""


class FeatureEmbedding(nn.Linear):
    """One linear layer for the features of every position. Raises ValueError for as many dims as it does not have."""

    def forward(self, features_BTF: Tensor) -> Tensor:
        """[B, T, F] to [B, T, M]."""
        if features_BTF.ndim != 3 or features_BTF.shape[2] != self.in_features:
            raise ValueError(
                f"features have the shape {list(features_BTF.shape)}, and this encoder reads "
                f"[batch, positions, {self.in_features}]"
            )
        return super().forward(features_BTF.to(self.weight.dtype))


class PatchEmbedding(nn.Linear):
    """One linear layer for the pixels of every patch (arXiv 2010.11929, equation 1, without its class token).

    Pixels lie between 0 and 1 and are taken as 2 × pixel − 1, since vectors around 0 train faster. Patches do not
    overlap and come row by row; of a patch, the pixels of the first channel come first, row by row. Raises ValueError
    for images of another size.
    """

    def __init__(self, config: TwofoldEncoderConfig) -> None:
        super().__init__(config.num_channels * config.patch_size**2, config.hidden_size)
        self.image = (config.num_channels, config.image_height, config.image_width)
        self.patch = config.patch_size

    def forward(self, pixels_BCYX: Tensor) -> Tensor:
        """Images [B, C, height, width] to [B, T, M]."""
        if pixels_BCYX.ndim != 4 or pixels_BCYX.shape[1:] != self.image:
            raise ValueError(
                f"pixel_values have the shape {list(pixels_BCYX.shape)}, and this encoder reads "
                f"[batch, {', '.join(map(str, self.image))}]"
            )
        return super().forward(2 * patches(pixels_BCYX, self.patch).to(self.weight.dtype) - 1)


def patches(pixels_BCYX: Tensor, size: int) -> Tensor:
    """Images [B, C, height, width] as T patches in rows of an image, [B, T, C · size²]."""
    cut = pixels_BCYX.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # [B, C, rows, size, columns, size]
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def only_input(config: TwofoldEncoderConfig, given: dict[str, Tensor | None]) -> tuple[str, Tensor]:
    """The one argument that is given, and its name. Raises ValueError unless it is one that the encoder reads."""
    there = {name: value for name, value in given.items() if value is not None}
    wanted = ARGUMENTS[config.reads]
    choice = wanted if config.reads == "embeddings" else f"either {wanted} or inputs_embeds"
    if len(there) != 1:
        raise ValueError(f"give {choice}, and no other input; given: {', '.join(there) or 'nothing'}")
    ((name, value),) = there.items()
    if name not in (wanted, "inputs_embeds"):
        raise ValueError(f"this encoder reads {config.reads} and has no embedding for {name}: give {choice}")
    return name, value
