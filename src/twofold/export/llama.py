"""Models whose keys rotary turns as a whole, and whose values it does not, as transformers' Llama.

QKV, GQA and MQA have Llama's form already. Where roles share a matrix, each gets a copy: Q=K, and K=V and Q=K=V whose
keys are turned when they are read (`on_read`), so that the value is the raw key. Their outputs are the same; Llama
caches key and value of each, so that sharing saves nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from transformers import LlamaConfig

from twofold.attention.projections import Projections
from twofold.export.refusals import common_reasons, is_mixture, require_none
from twofold.export.target import Target, common_changes, common_fields
from twofold.export.weights import outside_attention, role_matrices, scaled, seams
from twofold.models.architecture import Architecture
from twofold.models.decoder import TwofoldForCausalLM
from twofold.variants.choices import Sharing, Treatment


def llama(model: TwofoldForCausalLM, untied: bool = False) -> Target:
    """The model as `LlamaForCausalLM`. Raises ValueError with the reasons where Llama cannot compute the same."""
    require_none(reasons(model.config.architecture), model.config.architecture, "llama")
    sizes = model.config.architecture.at(0)
    tensors = outside_attention(model)
    for number, seam in enumerate(seams(model)):
        made = _attention(seam, sizes)
        tensors |= {f"model.layers.{number}.self_attn.{name}.weight": weight for name, weight in made.items()}
    config = LlamaConfig(
        **common_fields(model, untied),
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        mlp_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rotary_base},
    )
    shared = sizes.variant.sharing is not Sharing.QKV
    return Target(
        config=config,
        tensors=tensors,
        cache_numbers=2 * sizes.kv_heads * sizes.head_dim,
        changes=(*(["roles that share a matrix have a copy each"] if shared else []), *common_changes(model, untied)),
        notes=(_saves_nothing(sizes),) if sizes.variant.sharing.value_is_key else (),
    )


def reasons(sizes: Architecture) -> Iterator[str]:
    """Why these sizes cannot be Llama's; none where they can."""
    yield from common_reasons(sizes)
    if sizes.is_recurrent or is_mixture(sizes):
        return
    if sizes.width % sizes.heads:
        yield f"Llama needs a width that is a multiple of its heads, and {sizes.width} is none of {sizes.heads}"
    if sizes.variant.rotary_apart:
        yield "it has a rotary key beside its content, and Llama has none: use deepseek, which has that form"
        return
    if sizes.variant.latent:
        yield "its keys and values are made of a latent, and Llama's of the input: use MLA, not on_read, as deepseek"
        return
    if sizes.rotary == "partial":
        yield f"rotary turns {sizes.rotated_dims} of {sizes.head_dim} dims, and Llama's turns all: use rotary full"
    treatment = sizes.variant.treatment
    if sizes.variant.sharing.value_is_key and treatment is not Treatment.ON_READ:
        yield (
            f"its {treatment.value} values are turned keys or lie among them, and Llama's are never turned: use "
            f"{sizes.variant.sharing.value} on_read with rotary full, or K=V decoupled as deepseek, which keeps the "
            "saving"
        )


def _saves_nothing(sizes: Architecture) -> str:
    return (
        f"Llama caches key and value although they are one: {2 * sizes.kv_heads * sizes.head_dim} numbers per token "
        f"and layer, where the model itself caches {sizes.row_layout.numbers(sizes.kv_heads)}. This export saves no "
        "memory"
    )


def _attention(seam: Projections, sizes: Architecture) -> dict[str, Tensor]:
    """The attention's tensors under Llama's names, of one layer."""
    roles = role_matrices(seam)
    query, value = roles["query"], roles["value"]
    if seam.variant.diagonal:
        if seam.variant.sharing.query_is_key:
            query = scaled(query, seam.query_scale)
        # One number for both dims of a rotated pair, so that scaling and turning commute.
        query = scaled(query, seam.key_factors().repeat_interleave(sizes.heads // sizes.kv_heads, dim=0).flatten())
        if seam.variant.sharing.value_is_key:
            value = scaled(value, seam.value_scale)
    return {
        "q_proj": scaled(query, sizes.head_dim ** (0.5 - sizes.scale_exponent)),
        "k_proj": roles["key"],
        "v_proj": value,
        "o_proj": seam.o_proj.weight,
    }
