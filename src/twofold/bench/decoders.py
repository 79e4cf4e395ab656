"""The models that are measured, ours and others of equal size, with random weights. Everything in float32."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from twofold.models.architecture import Architecture
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM

SEED = 0


def ours(arch: Architecture) -> TwofoldForCausalLM:
    """Our decoder."""
    torch.manual_seed(SEED)
    return TwofoldForCausalLM(TwofoldConfig.from_architecture(arch)).eval()


def llama(arch: Architecture) -> LlamaForCausalLM:
    """Transformers' Llama with the sizes of a modern block, and as many key/value heads."""
    assert arch.block == "modern"
    torch.manual_seed(SEED)
    config = LlamaConfig(
        num_hidden_layers=arch.layers,
        hidden_size=arch.width,
        num_attention_heads=arch.heads,
        num_key_value_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        intermediate_size=arch.mlp,
        vocab_size=arch.vocab,
        max_position_embeddings=arch.positions,
        rms_norm_eps=arch.norm_epsilon,
        tie_word_embeddings=arch.tied,
        **_without_special_tokens(),
    )
    return LlamaForCausalLM(config).eval()


def gpt2(arch: Architecture) -> GPT2LMHeadModel:
    """Transformers' GPT-2 with the sizes of a paper block."""
    assert (arch.block, arch.activation) == ("paper", "gelu")
    torch.manual_seed(SEED)
    config = GPT2Config(
        n_layer=arch.layers,
        n_embd=arch.width,
        n_head=arch.heads,
        n_inner=arch.mlp,
        vocab_size=arch.vocab,
        n_positions=arch.positions,
        activation_function="gelu",
        resid_pdrop=arch.dropout,
        embd_pdrop=arch.dropout,
        attn_pdrop=0.0,
        layer_norm_epsilon=arch.norm_epsilon,
        tie_word_embeddings=arch.tied,
        **_without_special_tokens(),
    )
    return GPT2LMHeadModel(config).eval()


def x_transformers(arch: Architecture) -> nn.Module:
    """The decoder of x-transformers with the sizes of a modern block, flash attention switched on: ids to logits.

    Its gated MLP keeps the biases of its first matrix whatever `ff_no_bias` says, 2 · mlp numbers a layer.
    """
    from x_transformers import Decoder, TransformerWrapper

    assert arch.block == "modern"
    torch.manual_seed(SEED)
    layers = Decoder(
        dim=arch.width,
        depth=arch.layers,
        heads=arch.heads,
        attn_dim_head=arch.head_dim,
        attn_flash=True,
        rotary_pos_emb=True,
        rotary_emb_dim=arch.head_dim,
        use_rmsnorm=True,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        ff_mult=arch.mlp / arch.width,
    )
    return TransformerWrapper(
        num_tokens=arch.vocab,
        max_seq_len=arch.positions,
        use_abs_pos_emb=False,
        tie_embedding=arch.tied,
        attn_layers=layers,
    ).eval()


X_TRANSFORMERS = {"x_transformers": "x-transformers"}


def left_out(what: str, needs: Mapping[str, str]) -> list[str]:
    """A line that says that `what` is left out, where one of the modules that it `needs` is not installed."""
    missing = [package for module, package in needs.items() if find_spec(module) is None]
    if not missing:
        return []
    return [f"{what} is left out: {' and '.join(missing)} not installed (pip install -e '.[bench]' in a checkout)"]


def random_ids(arch: Architecture, sequences: int, tokens: int) -> Tensor:
    """Token ids [B, T] that are equal in every run."""
    return torch.randint(arch.vocab, (sequences, tokens), generator=torch.Generator().manual_seed(SEED))


def _without_special_tokens() -> dict[str, Any]:
    return {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "use_cache": True}
