"""Encoders from what a task reads and asks: their fields, their initial values, their parameters by part."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from small_encoders import CLASSES, FEATURES, HEAD_DIM, HEADS, IMAGE, MLP, PATCH, PATCHES, READS, VOCAB, WIDTH, T
from small_encoders import config_of as of
from twofold.analysis.costs import measured_parameters
from twofold.models.encoder_build import HEADS as ANSWERS
from twofold.models.encoder_build import encoder_config, encoder_model
from twofold.models.initialise import initialise

EACH = [(reads, head) for reads in READS for head in ANSWERS]


def drawn(reads, head, variant, seed=5, **others):
    """Initial values; what is not drawn would be NaN."""
    model = encoder_model(of(reads, variant, **others), head)
    for parameter in model.parameters():
        nn.init.constant_(parameter, torch.nan)
    initialise(model, seed)
    return model


def test_importing_it_loads_neither_torch_nor_transformers():
    code = "import sys, twofold.models.encoder_build; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_configuration_says_what_is_read():
    tokens, features, images = (of(reads) for reads in READS)
    assert (tokens.reads, features.reads, images.reads) == tuple(READS)
    assert tokens.vocab_size == VOCAB
    assert features.feature_dims == FEATURES
    assert (images.num_channels, images.image_height, images.image_width) == IMAGE
    assert [config.max_position_embeddings for config in (tokens, features, images)] == [T, T, PATCHES]
    assert {config.num_labels for config in (tokens, features, images)} == {CLASSES}
    assert of("tokens", padding=0).pad_token_id == 0
    assert of("tokens", max_position_embeddings=97, positions="learned").max_position_embeddings == 97


@pytest.mark.parametrize(("reads", "head"), EACH)
def test_variants_start_from_what_they_have_in_common(reads, head):
    variants = ("QKV", "Q=K", "Q=K=V +", "K=V +relative", "Q=K +", "Q=K=V diagonal")
    models = [drawn(reads, head, variant, head_dim=2, positions="learned").state_dict() for variant in variants]
    for one in models:
        for other in models:
            common = {name for name in one.keys() & other.keys() if one[name].shape == other[name].shape}
            assert len(common) > 15
            assert all(torch.equal(one[name], other[name]) for name in common)
    others = drawn(reads, head, "QKV", seed=6, head_dim=2, positions="learned").state_dict()
    assert all(not torch.equal(value, others[name]) for name, value in models[0].items() if value.ndim == 2)


@pytest.mark.parametrize(("reads", "head"), EACH)
def test_biases_start_at_0_and_norms_at_1(reads, head):
    model = drawn(reads, head, "Q=K=V +", norm_order="pre")
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name or name == "classifier.1.weight":
            assert (parameter == 1).all(), name
        else:
            assert parameter.std() > 0, name


@pytest.mark.parametrize(("width", "dims"), [(64, 400), (400, 64)])
def test_what_is_read_starts_as_large_as_it_is_given(width, dims):
    model = encoder_model(encoder_config("QKV", reads="features", classes=2, features=dims, hidden_size=width), "whole")
    initialise(model, 3)
    given = torch.randn(50, 3, dims)
    assert model.model.embed_features(given).std().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(("reads", "head"), EACH)
def test_parameters_are_counted_by_part(reads, head):
    model = drawn(reads, head, "K=V GQA-2 +", positions="learned", norm_order="pre")
    inner, kv = HEADS * HEAD_DIM, 2 * HEAD_DIM
    layers, norm, outputs = 2, 2 * WIDTH, 1 if head == "member" else CLASSES
    inputs = {"tokens": VOCAB, "features": FEATURES + 1, "images": IMAGE[0] * PATCH**2 + 1}
    expected = {
        "embedding": inputs[reads] * WIDTH,
        "positions": (PATCHES if reads == "images" else T) * WIDTH + layers * 11,  # 10 channels and a bias
        "attention": layers * ((WIDTH + 1) * (inner + kv) + (inner + 1) * WIDTH),
        "mlp": layers * ((WIDTH + 1) * MLP + (MLP + 1) * WIDTH),
        "norm": (2 * layers + 1) * norm,
        "head": (WIDTH + 1) * WIDTH + norm + (WIDTH + 1) * outputs,
    }
    assert measured_parameters(model) == {**expected, "total": sum(expected.values())}
    assert sum(expected.values()) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reads": "sounds"}, "an encoder reads tokens, features, images, and not 'sounds'"),
        ({"reads": "tokens"}, "must know vocabulary: give them"),
        ({"reads": "features"}, "must know features: give them"),
        ({"reads": "images"}, "must know image and patch: give them"),
        ({"reads": "images", "image": (1, 8, 9), "patch": 2}, "image_width 9 is not a multiple of patch_size 2"),
        ({"reads": "images", "image": (1, 8, 8), "patch": 9}, "image_height 8 is not a multiple of patch_size 9"),
        ({"reads": "features", "features": 5, "width": 3}, "has no width to set here: choose from dropout, head_dim"),
        ({"reads": "features", "features": 5, "vocab_size": 3}, "has no vocab_size to set here"),
    ],
)
def test_what_cannot_be_built_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        encoder_config("QKV", classes=3, **given)


def test_an_unknown_head_is_refused():
    with pytest.raises(ValueError, match="head 'next' is unknown: choose positions, whole, member"):
        encoder_model(of("tokens"), "next")
