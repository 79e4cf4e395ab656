"""A decoder's embedding and logits as one product, for the copying score through the vocabulary."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from twofold.explain.circuits import token_product
from twofold.explain.weights import SHIFTED_SCALE

FINAL_NORMS = ("norm", "ln_f", "decoder.final_layer_norm", "language_model.norm")


def vocabulary_product(model: PreTrainedModel) -> Tensor | None:
    """`token_product` of a decoder, with the scale of the norm before its logits; None for a model without logits of
    tokens, and for one whose embeddings are not as wide as its stream.
    """
    read, embedded = model.get_output_embeddings(), model.get_input_embeddings()
    width = model.config.get_text_config(decoder=True).hidden_size
    if not isinstance(read, nn.Linear) or not isinstance(embedded, nn.Embedding):
        return None
    if embedded.weight.shape != read.weight.shape or embedded.weight.shape[1] != width:
        return None
    return token_product(embedded.weight.detach(), read.weight.detach(), _final_scale(model))


def _final_scale(model: PreTrainedModel) -> Tensor | None:
    modules = dict(model.base_model.named_modules())
    norm = next((modules[name] for name in FINAL_NORMS if name in modules), None)
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    scale_M = weight.detach().float()
    kinds = {model.config.model_type, model.config.get_text_config(decoder=True).model_type}
    return 1 + scale_M if kinds & set(SHIFTED_SCALE) else scale_M
