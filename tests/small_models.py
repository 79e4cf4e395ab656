"""Tiny models on awkward sizes, and what tests of layers, caches and models share."""

from contextlib import contextmanager

import torch
from torch import nn

from twofold.attention.latent import projections
from twofold.attention.projections import Projections
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.variants.layout import cache_bytes
from twofold.variants.notation import parse
from twofold.variants.tensors import LayerSizes

VARIANTS = ("QKV", "K=V", "Q=K", "Q=K=V", "GQA-2", "MQA", "K=V GQA-2", "K=V MQA")
STYLES = (("paper", "none"), ("paper", "full"), ("modern", "none"), ("modern", "full"))
"""Block styles and rotary, all four pairs."""
PAIRED = tuple((variant, STYLES[n % len(STYLES)]) for n, variant in enumerate(VARIANTS))
"""Every variant, in one style each; every style in two variants."""

WIDTH, HEADS, HEAD_DIM, VOCAB, POSITIONS = 13, 6, 10, 29, 53
"""Width is not heads × head dim, and no two sizes that could be swapped are equal."""


def randomise(module: nn.Module, deviation: float = 0.5) -> None:
    """Values that leave nothing at its neutral value: biases are not 0, norm weights not 1."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * deviation
            parameter.copy_(noise + (1 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0))


def small_config(variant: str = "QKV", block: str = "modern", rotary: str = "full", **others) -> TwofoldConfig:
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": 17,
        "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS,
        "attn_implementation": "sdpa",
    }
    return TwofoldConfig(**{**sizes, "variant": variant, "block": block, "rotary": rotary, **others})


def small_model(variant: str = "QKV", block: str = "modern", rotary: str = "full", **others) -> TwofoldForCausalLM:
    """In float64 and eval mode, with random values in every parameter."""
    model = TwofoldForCausalLM(small_config(variant, block, rotary, **others)).double().eval()
    randomise(model)
    return model


def small_projections(variant: str, *, fused: bool = False, bias: bool = True, **others) -> Projections:
    """The seam of one layer, in float64, with random values; those of fused matrices differ from separate ones'."""
    chosen = parse(variant)
    sizes = LayerSizes(WIDTH, HEADS, HEAD_DIM, chosen.usual_rotary_dims(HEAD_DIM), biases=bias, **others)
    made = projections(chosen, sizes, fused=fused).double()
    randomise(made)
    return made


def random_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def formula_bytes(model: TwofoldForCausalLM, *, tokens: int, batch: int) -> int:
    """What the row's arithmetic promises for this model."""
    sizes = model.config.architecture
    return cache_bytes(
        sizes.row_layout,
        sizes.kv_heads,
        tokens=tokens,
        batch=batch,
        layers=sizes.layers,
        itemsize=model.dtype.itemsize,
    )


@contextmanager
def uninitialised_is_nan():
    """Memory that nobody wrote reads as NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)
