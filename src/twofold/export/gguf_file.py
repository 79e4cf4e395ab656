"""A model as a GGUF file for llama.cpp: `deepseek2`, whose cache keeps latent and rotary key once, or `llama`.

llama.cpp adds the ε of all norms to the latent's mean square as well, ε', where ours is 1e-6: the latent times
√(ε'/1e-6) gives the same norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from twofold.attention.projections import NORM_EPSILON
from twofold.export.deepseek import deepseek
from twofold.export.gguf_form import FORMS, LATENT, MLP_NAMES, Form, add_common_sizes
from twofold.export.gguf_tokenizer import add_tokenizer
from twofold.export.llama import llama
from twofold.export.refusals import is_mixture
from twofold.export.target import Target
from twofold.export.weights import scaled
from twofold.models.architecture import Architecture
from twofold.models.decoder import TwofoldForCausalLM

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedTokenizerBase

TYPES = ("f32", "f16", "q8_0")
"""How matrices are stored; vectors are f32."""
TINY = (
    "the latent's weights are tiny, since it has no norm, and stay float32: a device on which llama.cpp multiplies "
    "these in float16 loses them"
)


def gguf(model: TwofoldForCausalLM, untied: bool = False) -> Target:
    """The model as what llama.cpp has: Llama where keys and values have matrices of their own, else DeepSeek-V3 whose
    latent has the norm that llama.cpp computes. Raises ValueError as `llama` or `deepseek`.
    """
    if _is_llama(model.config.architecture):
        return llama(model, untied)
    target = deepseek(model, untied=untied, called="gguf")
    grown = (target.config.rms_norm_eps / NORM_EPSILON) ** 0.5
    tensors = dict(target.tensors)
    for name in tensors:
        if name.endswith("kv_a_proj_with_mqa.weight"):
            latent_CM, key_RM = tensors[name].tensor_split([target.config.kv_lora_rank])
            tensors[name] = torch.cat([scaled(latent_CM, grown), key_RM])
    changed = () if grown == 1 else (f"the latent times {grown:.4g}, since llama.cpp adds the ε of all norms to it",)
    notes = (TINY,) if target.tiny_latent else ()
    return target._replace(tensors=tensors, changes=(*target.changes, *changed), notes=notes)


def _is_llama(sizes: Architecture) -> bool:
    """Whether it is Llama's form that this model is near to."""
    variant = sizes.variant
    return not (is_mixture(sizes) or sizes.is_recurrent or variant.latent or variant.sharing.value_is_key)


def write_gguf(
    target: Target, path: Path, kind: str, tokenizer: PreTrainedTokenizerBase | None, form: Form | None = None
) -> None:
    """Write a target of `gguf` as one GGUF file with its matrices as `kind` (see `TYPES`).

    Rows whose width is no multiple of 32 stay f16 where q8_0 is asked for. Without a tokenizer the file has none.
    `form` takes the place of the usual one of `FORMS`.
    """
    from gguf import GGUFWriter

    form = form or FORMS[target.config.model_type]
    writer = GGUFWriter(path, form.architecture)
    add_common_sizes(writer, target.config)
    form.add_sizes(writer, target.config)
    add_tokenizer(writer, target.config, tokenizer)
    for name, tensor in _tensors(target, form):
        small = target.tiny_latent and name.endswith(f".{LATENT}.weight")
        _add_tensor(writer, name, tensor, "f32" if small else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(target: Target, form: Form) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with GGUF's name."""
    config, made = target.config, target.tensors
    yield "token_embd.weight", made["model.embed_tokens.weight"]
    yield "output_norm.weight", made["model.norm.weight"]
    if not config.tie_word_embeddings:
        yield "output.weight", made["lm_head.weight"]
    for number in range(config.num_hidden_layers):
        start = f"model.layers.{number}."
        layer = {
            name.removeprefix(start).removesuffix(".weight"): tensor
            for name, tensor in made.items()
            if name.startswith(start)
        }
        for theirs, name in MLP_NAMES.items():
            yield f"blk.{number}.{name}.weight", layer[theirs]
        for name, tensor in form.attention(config, layer).items():
            yield f"blk.{number}.{name}.weight", tensor


def _add_tensor(writer: GGUFWriter, name: str, tensor: Tensor, kind: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    values = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
    if values.ndim == 1 or kind == "f32":
        writer.add_tensor(name, values)
    elif kind == "f16" or values.shape[-1] % 32:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        stored = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)
