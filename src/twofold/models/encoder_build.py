"""An encoder from what a task reads and asks. Neither torch nor transformers is loaded before one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twofold.models.encoder import EncoderWithHead
    from twofold.models.encoder_configuration import TwofoldEncoderConfig

HEADS = {
    "positions": "TwofoldForTokenClassification",
    "whole": "TwofoldForSequenceClassification",
    "member": "TwofoldForMemberChoice",
}
"""What is answered (a class for each position, a class for the whole input, one of the positions) → the model."""


def encoder_config(
    variant: str,
    *,
    reads: str,
    classes: int,
    vocabulary: int = 0,
    features: int = 0,
    image: tuple[int, int, int] | None = None,
    patch: int = 0,
    length: int = 0,
    padding: int | None = None,
    **sizes: Any,
) -> TwofoldEncoderConfig:
    """The configuration of an encoder that reads "tokens", "features" or "images".

    `image` is (channels, height, width) and `patch` its patches' side, in pixels. `length` counts positions; the
    patches of an image are counted here. `padding` is the token that fills up. `sizes` are further fields of
    `TwofoldEncoderConfig`.

    Raises ValueError where what is read is not told, for a field that does not exist, and as the configuration does.
    """
    from twofold.models.encoder_configuration import IMAGE_FIELDS, TwofoldEncoderConfig

    inputs = _inputs(reads, vocabulary, features, image, patch)
    taken = set(TwofoldEncoderConfig.__annotations__) - {"variant", "vocab_size", "feature_dims", "pad_token_id"}
    taken -= set(IMAGE_FIELDS)
    if unknown := sorted(set(sizes) - taken):
        raise ValueError(f"an encoder has no {', '.join(unknown)} to set here: choose from {', '.join(sorted(taken))}")
    if image and patch:
        length = (image[1] // patch) * (image[2] // patch)
    if length:
        sizes = {"max_position_embeddings": length, **sizes}
    return TwofoldEncoderConfig(variant=variant, num_labels=classes, pad_token_id=padding, **inputs, **sizes)


def encoder_model(config: TwofoldEncoderConfig, head: str) -> EncoderWithHead:
    """The model that answers with `head`, one of `HEADS`; ValueError for another."""
    if head not in HEADS:
        raise ValueError(f"head {head!r} is unknown: choose {', '.join(HEADS)}")
    from twofold.models import encoder

    return getattr(encoder, HEADS[head])(config)


def _inputs(
    reads: str, vocabulary: int, features: int, image: tuple[int, int, int] | None, patch: int
) -> dict[str, int]:
    """The fields of what is read."""
    needed: dict[str, dict[str, Any]] = {
        "tokens": {"vocabulary": vocabulary},
        "features": {"features": features},
        "images": {"image": image, "patch": patch},
    }
    if reads not in needed:
        raise ValueError(f"an encoder reads {', '.join(needed)}, and not {reads!r}")
    if missing := [name for name, value in needed[reads].items() if not value]:
        raise ValueError(f"an encoder that reads {reads} must know {' and '.join(missing)}: give them")
    if reads == "tokens":
        return {"vocab_size": vocabulary}
    if reads == "features":
        return {"feature_dims": features}
    assert image is not None
    channels, height, width = image
    return {"num_channels": channels, "image_height": height, "image_width": width, "patch_size": patch}
