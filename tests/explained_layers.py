"""Layers to explain: of our own tiny models and of tiny random models of transformers' own classes."""

from functools import cache

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from small_models import randomise, small_model
from tiny_published import tiny_config
from twofold.explain.layer_weights import LayerWeights
from twofold.explain.weights import read_weights

OWN = ("QKV", "GQA-2", "MQA", "Q=K", "K=V", "Q=K=V", "K=V GQA-2", "MLA")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "opt")
EVERY = (*OWN, *FAMILIES)


def family_model(model_type, **others):
    """In float32, with random values in every parameter, and two layers or more."""
    config = tiny_config(model_type, **others)
    built = CONFIG_MAPPING[model_type].from_dict(config)
    model = AutoModelForCausalLM.from_config(built, dtype=torch.float32).eval()
    randomise(model)
    return model


def own_model(variant):
    return small_model(variant, rotary="partial" if variant == "MLA" else "full").float()


@cache
def layers_of(name) -> tuple[LayerWeights, ...]:
    """The first two layers of a variant's or a family's model."""
    model = own_model(name) if name in OWN else family_model(name)
    return tuple(read_weights(model, (0, 1)))


def random_layer(heads=6, kv_heads=2, dims=5, width=31, seed=0) -> LayerWeights:
    """Gaussian matrices of awkward sizes."""
    generator = torch.Generator().manual_seed(seed)

    def made(*shape):
        return torch.randn(shape, generator=generator)

    rows = (kv_heads, dims, width)
    return LayerWeights(0, made(heads, dims, width), made(*rows), made(*rows), made(heads, width, dims))


def head_of(layer, head):
    """W_Q, W_K, W_V [D, M] and W_O [M, D] of one query head, float64."""
    kv = head // (len(layer.q_HDM) // len(layer.k_GDM))
    return layer.q_HDM[head].double(), layer.k_GDM[kv].double(), layer.v_GDM[kv].double(), layer.o_HMD[head].double()


def orthogonal(dims, seed):
    drawn = torch.randn(dims, dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(drawn).Q
