"""Tiny encoders for every kind of input and every head, on awkward sizes."""

import torch

from small_models import randomise
from twofold.models.encoder_build import encoder_config, encoder_model

WIDTH, HEADS, HEAD_DIM, MLP, VOCAB, CLASSES, T, FEATURES, BATCH = 12, 6, 10, 17, 29, 7, 11, 5, 3
IMAGE, PATCH = (2, 6, 15), 3
PATCHES = 10
READS = {
    "tokens": {"vocabulary": VOCAB, "length": T},
    "features": {"features": FEATURES, "length": T},
    "images": {"image": IMAGE, "patch": PATCH},
}
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": MLP,
}


def config_of(reads, variant="QKV", **others):
    return encoder_config(variant, reads=reads, classes=CLASSES, **{**READS[reads], **SIZES, **others})


def encoder_of(reads, head, variant="QKV", attention="sdpa", **others):
    """In float64 and eval mode, with random values in every parameter."""
    model = encoder_model(config_of(reads, variant, **others), head).double().eval()
    model.set_attn_implementation(attention)
    randomise(model)
    return model


def inputs(reads, batch=BATCH):
    """The model's argument with random numbers, ids int64 and the others float64."""
    if reads == "tokens":
        return {"input_ids": torch.randint(VOCAB, (batch, T))}
    if reads == "features":
        return {"features": torch.randn(batch, T, FEATURES, dtype=torch.float64)}
    return {"pixel_values": torch.rand(batch, *IMAGE, dtype=torch.float64)}


def positions_of(reads):
    return PATCHES if reads == "images" else T


def labels(reads, head, batch=BATCH):
    if head == "member":
        return torch.randint(positions_of(reads), (batch,))
    return torch.randint(CLASSES, (batch,) if head == "whole" else (batch, positions_of(reads)))
