"""Tiny random models of the families whose layers cache their input: multi-head attention without rotary embedding."""

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from small_models import randomise

VOCAB, POSITIONS = 61, 97
HEADS, HEAD_DIM = 3, 16
WIDTH = HEADS * HEAD_DIM
MELS, FRAMES = 5, 22
"""Of Whisper's audio; the encoder keeps half of the frames."""


def made(model: PreTrainedModel, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """In eval mode, with random values in every parameter, and never at an end token."""
    model.set_attn_implementation(attention)
    randomise(model, 0.2)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.to(dtype).eval()


def gpt2(dtype: torch.dtype = torch.float64, attention: str = "sdpa", **others) -> GPT2LMHeadModel:
    sizes = {"n_layer": 2, "n_embd": WIDTH, "n_head": HEADS, "n_positions": POSITIONS, "vocab_size": VOCAB}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return made(GPT2LMHeadModel(GPT2Config(**{**sizes, **ends, "n_inner": 40, **others})), dtype, attention)


def opt(dtype: torch.dtype = torch.float64, attention: str = "sdpa", **others) -> OPTForCausalLM:
    sizes = {"num_hidden_layers": 2, "hidden_size": WIDTH, "num_attention_heads": HEADS, "ffn_dim": 40}
    rest = {"word_embed_proj_dim": 24, "max_position_embeddings": POSITIONS, "vocab_size": VOCAB}
    return made(OPTForCausalLM(OPTConfig(**{**sizes, **rest, **others})), dtype, attention)


def whisper(dtype: torch.dtype = torch.float64, attention: str = "sdpa", **others) -> WhisperForConditionalGeneration:
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "d_model": WIDTH, "vocab_size": VOCAB, "num_mel_bins": MELS}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": HEADS}
    dims = {"encoder_ffn_dim": 29, "decoder_ffn_dim": 40, "max_source_positions": FRAMES // 2}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 3}
    rest = {"max_target_positions": POSITIONS, "begin_suppress_tokens": None, "suppress_tokens": None}
    config = WhisperConfig(**{**sizes, **heads, **dims, **tokens, **rest, **others})
    return made(WhisperForConditionalGeneration(config), dtype, attention)


FAMILIES = {"gpt2": gpt2, "opt": opt, "whisper": whisper}


def random_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(4, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def audio(batch: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(batch, MELS, FRAMES, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


def inputs(family: str, ids: torch.Tensor, mask: torch.Tensor | None = None, dtype=torch.float64) -> dict:
    """What the model of a family is called with for these tokens."""
    if family != "whisper":
        return {"input_ids": ids, "attention_mask": mask}
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask, "input_features": audio(len(ids), dtype)}
