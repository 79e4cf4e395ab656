"""What the encoder reads: patches are those of a convolution, sets have no order, one kind of input and no other."""

import pytest
import torch
import torch.nn.functional as F

from every_variant import EVERY
from small_encoders import FEATURES, IMAGE, PATCH, PATCHES, WIDTH, T, config_of, encoder_of, inputs
from twofold.models.encoder import TwofoldEncoder
from twofold.models.encoder_configuration import TwofoldEncoderConfig
from twofold.models.encoder_inputs import patches
from twofold.variants.choices import Recurrence
from twofold.variants.notation import parse

POSITIONS = ("sinusoidal", "learned", "rotary", "none")


def set_variants():
    """Every notation that an encoder can be, and the control that knows no positions."""
    for notation in (*dict.fromkeys(fields["variant"] for fields in EVERY.values()), "Q=K +temperature"):
        variant = parse(notation)
        shares_layers = variant.row_layers > 1 or variant.matrix_layers > 1
        caches = variant.latent or variant.needs_rotary_part or variant.recurrence is not Recurrence.NONE
        if not (shares_layers or caches):
            yield notation


def test_patches_come_row_by_row():
    rows, columns = IMAGE[1] // PATCH, IMAGE[2] // PATCH
    pixels = inputs("images")["pixel_values"]
    cut = patches(pixels, PATCH)
    assert cut.shape == (len(pixels), PATCHES, IMAGE[0] * PATCH**2)
    for row in range(rows):
        for column in range(columns):
            patch = pixels[:, :, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
            assert torch.equal(cut[:, row * columns + column], patch.flatten(1))


def test_an_image_is_embedded_by_a_convolution_that_does_not_overlap():
    model = encoder_of("images", "positions").model
    given = inputs("images")
    kernel = model.embed_patches.weight.view(WIDTH, IMAGE[0], PATCH, PATCH)
    embedded = F.conv2d(2 * given["pixel_values"] - 1, kernel, model.embed_patches.bias, stride=PATCH).flatten(2).mT
    ours, expected = model(**given), model(inputs_embeds=embedded)
    torch.testing.assert_close(ours.last_hidden_state, expected.last_hidden_state, rtol=0, atol=1e-10)


def test_features_are_embedded_by_one_matrix():
    model = encoder_of("features", "positions", "Q=K +").model
    given = inputs("features")
    embedded = given["features"] @ model.embed_features.weight.T + model.embed_features.bias
    ours, expected = model(**given), model(inputs_embeds=embedded)
    torch.testing.assert_close(ours.last_hidden_state, expected.last_hidden_state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", tuple(set_variants()))
def test_without_positions_the_members_of_a_set_have_no_order(variant):
    model = encoder_of("features", "positions", variant, positions="none", head_dim=2)
    given, order = inputs("features")["features"], torch.randperm(T)
    ordered, moved = model(features=given).logits, model(features=given[:, order]).logits
    torch.testing.assert_close(moved, ordered[:, order], rtol=0, atol=1e-10)
    for head in ("whole", "member"):
        model = encoder_of("features", head, variant, positions="none", head_dim=2)
        ordered, moved = model(features=given).logits, model(features=given[:, order]).logits
        torch.testing.assert_close(moved, ordered if head == "whole" else ordered[:, order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("reads", ["features", "images"])
@pytest.mark.parametrize(
    ("variant", "positions"), [*(("K=V", positions) for positions in POSITIONS), ("Q=K=V +", "none")]
)
def test_what_has_positions_has_an_order(reads, variant, positions):
    """Patches change places as members of a set do; only without positions and terms does nobody see it."""
    model = encoder_of(reads, "whole", variant, positions=positions)
    (name, given), (axis, length) = *inputs(reads).items(), (3, IMAGE[2]) if reads == "images" else (1, T)
    blocks = length // PATCH if reads == "images" else length
    moved = torch.cat(given.chunk(blocks, axis)[::-1], axis)  # whole patches change places, not pixels in them
    same = torch.allclose(model(**{name: moved}).logits, model(**{name: given}).logits, rtol=0, atol=1e-10)
    assert same == (positions == "none" and variant == "K=V")


@pytest.mark.parametrize("reads", ["tokens", "features", "images"])
def test_only_what_is_read_has_parameters(reads):
    model = TwofoldEncoder(config_of(reads))
    named = {name.split(".")[0] for name, _ in model.named_parameters() if name.startswith("embed_")}
    assert named == {{"tokens": "embed_tokens", "features": "embed_features", "images": "embed_patches"}[reads]}
    assert model.main_input_name in inputs(reads)


def test_a_configuration_from_before_still_loads():
    """Encoders were saved when they read nothing but tokens and embeddings."""
    saved = TwofoldEncoderConfig(vocab_size=11, variant="Q=K +").to_dict()
    for name in ("feature_dims", "image_height", "image_width", "num_channels", "patch_size"):
        assert saved.pop(name) == 0
    loaded = TwofoldEncoderConfig.from_dict(saved)
    assert loaded.to_dict() == TwofoldEncoderConfig(vocab_size=11, variant="Q=K +").to_dict()
    assert loaded.reads == "tokens"
    assert TwofoldEncoderConfig().reads == "embeddings"


@pytest.mark.parametrize("reads", ["features", "images"])
def test_inputs_are_taken_in_the_models_dtype(reads):
    model = encoder_of(reads, "whole")
    given = {name: value.float() for name, value in inputs(reads).items()}
    exact = model(**{name: value.double() for name, value in given.items()}).logits
    assert torch.equal(model(**given).logits, exact)
    near = model.bfloat16()(**given).logits
    assert near.dtype == torch.bfloat16
    assert (near - exact).std() < 0.1 * exact.std()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"vocab_size": -1}, "vocab_size must be at least 1, or 0 where it is not read, not -1"),
        ({"feature_dims": -3}, "feature_dims must be at least 1, or 0 where it is not read, not -3"),
        ({"vocab_size": 5, "feature_dims": 7}, "vocab_size 5 and feature_dims 7 ask for more than one"),
        ({"image_height": 8, "patch_size": 4}, "there is no image_width, num_channels"),
        (
            {"feature_dims": 7, "image_height": 8, "image_width": 4, "num_channels": 1, "patch_size": 2},
            "feature_dims 7 and image_height 8 ask for more than one",
        ),
        (
            {"image_height": 8, "image_width": 10, "num_channels": 1, "patch_size": 4},
            "image_width 10 is not a multiple of patch_size 4",
        ),
        (
            {
                "image_height": 8,
                "image_width": 12,
                "num_channels": 1,
                "patch_size": 2,
                "positions": "learned",
                "max_position_embeddings": 23,
            },
            "24 patches of an image need as many learned positions, and max_position_embeddings is 23",
        ),
    ],
)
def test_what_no_encoder_can_read_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        TwofoldEncoderConfig(**given)


@pytest.mark.parametrize(
    ("reads", "given", "said"),
    [
        ("tokens", {}, "give either input_ids or inputs_embeds, and no other input; given: nothing"),
        ("tokens", {"features": torch.ones(1, 2, 3)}, "reads tokens and has no embedding for features"),
        ("images", {"input_ids": torch.ones(1, 2)}, "reads images and has no embedding for input_ids"),
        ("features", {"features": torch.ones(1, 2, 4)}, rf"\[1, 2, 4\], and this encoder reads .*{FEATURES}\]"),
        ("images", {"pixel_values": torch.ones(1, 1, 6, 15)}, r"\[1, 1, 6, 15\], and this encoder reads .*2, 6, 15\]"),
    ],
)
def test_another_input_is_refused(reads, given, said):
    with pytest.raises(ValueError, match=said):
        encoder_of(reads, "whole")(**given)
