"""llama.cpp beside the same Llama: its weights written as a GGUF file in float32, keys and values cached in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from transformers import LlamaForCausalLM

if TYPE_CHECKING:
    from llama_cpp import Llama

NEEDS = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}
"""Modules, and the packages that bring them."""

_LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Transformers' names of a layer's tensors, and GGUF's."""


def write_gguf(model: LlamaForCausalLM, path: Path) -> None:
    """Write the model's weights and sizes as GGUF (float32, without a tokenizer)."""
    from gguf import GGUFWriter

    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    for name, values in _tensors(model):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, np.ndarray]]:
    yield "token_embd.weight", _values(model.model.embed_tokens.weight)
    for number, layer in enumerate(model.model.layers):
        for theirs, name in _LAYER_TENSORS.items():
            values = _values(layer.get_submodule(theirs).weight)
            if name in ("attn_q", "attn_k"):
                values = _neighbours(values, model.config.head_dim)
            yield f"blk.{number}.{name}.weight", values
    yield "output_norm.weight", _values(model.model.norm.weight)
    if not model.config.tie_word_embeddings:
        yield "output.weight", _values(model.lm_head.weight)


def _neighbours(weight_OM: np.ndarray, head_dim: int) -> np.ndarray:
    """Rotary pairs dim i with dim i + D/2 in transformers, and dim 2i with dim 2i + 1 in llama.cpp."""
    halves = weight_OM.reshape(-1, 2, head_dim // 2, weight_OM.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight_OM.shape)


def _values(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().contiguous().numpy()


@contextmanager
def session(path: Path, capacity: int, threads: int) -> Iterator[Session]:
    """The model in a GGUF file, with room for `capacity` tokens, on as many threads as torch."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path),
        n_ctx=capacity,
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=0,
        flash_attn=False,  # the faster setting on a CPU for float32 keys and values
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    try:
        yield Session(model)
    finally:
        model.close()


class Session:
    """A `Decoder` of `bench.generate`."""

    def __init__(self, model: Llama) -> None:
        self.model = model
        self.last = 0

    def extend(self, ids_T: Tensor) -> None:
        """Hold all of `ids_T` but the last; the first of them are held already."""
        *context, self.last = ids_T.tolist()
        if len(context) > self.model.n_tokens:
            self.model.eval(context[self.model.n_tokens :])

    def decode(self, steps: int) -> float:
        """Make `steps` tokens greedily after the first, forget them, and give the seconds that one took."""
        held = self.model.n_tokens
        token = self.step(self.last)
        started = perf_counter()
        for _ in range(steps):
            token = self.step(token)
        seconds = (perf_counter() - started) / steps
        self.model.n_tokens = held  # `eval` forgets whatever comes after
        return seconds

    def step(self, token: int) -> int:
        """The likeliest token after this one."""
        self.model.eval([token])
        return int(self.logits().argmax())

    def logits(self) -> np.ndarray:
        """Logits of the last position, a view that the next step overwrites."""
        import llama_cpp

        pointer: Any = llama_cpp.llama_get_logits_ith(self.model.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab(),))
