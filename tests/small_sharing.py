"""Small models in float64 that sharing is made of, and what tests of it ask of any model."""

from __future__ import annotations

import torch

from small_checkpoints import VOCABULARY, checkpoint
from twofold.conversion.convert import convert_in
from twofold.conversion.share import share
from twofold.conversion.sharing_plan import Sharing
from twofold.models.decoder import TwofoldForCausalLM
from twofold.variants.notation import parse

LAYERS, WIDTH, HEADS, KV_HEADS, DIMS = 3, 29, 6, 3, 10
"""Numbers of no layer's parts are equal, and 2·G·D exceeds the width."""
ROWS = KV_HEADS * DIMS
WINDOWS, LENGTH, FEW = 7, 31, 29


def source(**others) -> TwofoldForCausalLM:
    """A random Llama of these sizes, taken in; smaller values than a checkpoint's, so that attention is not sharp."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIMS}
    model = checkpoint("mistral, window", **{**sizes, "sliding_window": None, **others}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    return convert_in(model).eval()


def windows(count=WINDOWS, length=LENGTH, seed=3) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))


def shared(model, variant, ids=None, **asked):
    return share(model, Sharing(parse(variant), **asked), windows() if ids is None else ids)


@torch.no_grad()
def logits(model, ids=None):
    return model(windows(3, 23, seed=5) if ids is None else ids).logits


def ids(count=WINDOWS):
    """Of tokens that every small model knows."""
    return windows(count, LENGTH) % FEW


def converted(model, variant, **asked):
    return shared(model, variant, ids=ids(), **asked)


def seen(model):
    return logits(model, ids(3))


@torch.no_grad()
def stepped(model, ids):
    """Logits of 19 tokens that come in parts of several sizes, and the cache that kept them."""
    parts, cache = [], None
    for part in ids.split([5, 1, 1, 7, 1, 1, 3], dim=1):
        output = model(part, cache=cache, use_cache=True)
        parts.append(output.logits)
        cache = output.cache
    return torch.cat(parts, 1), cache


def layer_tensors(model, layer):
    return dict(model.model.layers[layer].state_dict())


def seam(model, layer):
    return model.model.layers[layer].attention.projections
