"""The tensors of one attention layer, by name and shape, as they follow from the variant and the sizes. No torch.

The layer is built from these and the costs are counted from these, so that the two cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from twofold.variants.choices import Recurrence
from twofold.variants.variant import Variant

MATRIX_NAMES = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}


@dataclass(frozen=True)
class LayerSizes:
    """What the shapes of a layer's tensors depend on beside the variant. Counts of dims; `rotary_dims` 0 for none.

    `borrows` says that the layer reads another layer's rows and makes none. `biases` are those of every map,
    `qkv_bias` those of the maps that make queries, keys and values alone. `latent_norm`: whether a latent, or the
    content beside a rotary key, is normalised.
    """

    width: int
    heads: int
    head_dim: int
    rotary_dims: int = 0
    latent_dims: int = 0
    biases: bool = False
    qk_norm: bool = False
    sinks: bool = False
    borrows: bool = False
    qkv_bias: bool = False
    latent_norm: bool = True

    @property
    def input_biases(self) -> bool:
        """Whether the maps that make queries, keys and values have biases."""
        return self.biases or self.qkv_bias


class Matrix(NamedTuple):
    """A linear map: [outputs, inputs], and a bias of `outputs` numbers or none."""

    outputs: int
    inputs: int
    bias: bool

    @property
    def numbers(self) -> int:
        """Parameters, the bias included."""
        return self.outputs * (self.inputs + self.bias)


def matrices(variant: Variant, sizes: LayerSizes) -> dict[str, Matrix]:
    """Every matrix of the layer, under its module's name."""
    made = _latent(variant, sizes) if variant.latent else _projections(variant, sizes)
    heads_width = sizes.heads * sizes.head_dim
    return {**made, "o_proj": Matrix(sizes.width, heads_width, sizes.biases)}


def vectors(variant: Variant, sizes: LayerSizes) -> dict[str, int]:
    """Every other parameter of the layer: its name and how many numbers it has."""
    kv_width = variant.kv_heads_for(sizes.heads) * sizes.head_dim
    made: dict[str, int] = {}
    if sizes.qk_norm:
        own_query = not variant.sharing.query_is_key
        made |= {"q_norm.weight": sizes.head_dim} if own_query else {}
        made |= {} if sizes.borrows else {"k_norm.weight": sizes.head_dim}
    if variant.diagonal:
        made |= {"query_scale": sizes.heads * sizes.head_dim} if variant.sharing.query_is_key else {}
        made |= {"key_scale": kv_width - variant.kv_heads_for(sizes.heads) * sizes.rotary_dims // 2}
        made |= {"value_scale": kv_width} if variant.sharing.value_is_key else {}
    if sizes.latent_norm and not sizes.borrows:
        made |= {"content_norm.weight": kv_width} if variant.decoupled else {}
        made |= {"latent_norm.weight": sizes.latent_dims} if variant.latent else {}
    return made | ({"sinks": sizes.heads} if sizes.sinks else {})


def makes_keys(variant: Variant, rotary_dims: int, qk_norm: bool) -> bool:
    """Whether keys are made of a latent before a query meets them: what turns or normalises a key stands between the
    two then, so that no map of the key's can move to the query.
    """
    return variant.latent and variant.on_read and (rotary_dims > 0 or qk_norm)


def parameters(variant: Variant, sizes: LayerSizes) -> int:
    """Parameters of one layer's attention."""
    of_matrices = sum(matrix.numbers for matrix in matrices(variant, sizes).values())
    return of_matrices + sum(vectors(variant, sizes).values())


def macs_per_token(variant: Variant, sizes: LayerSizes, visible: int) -> int:
    """Multiply-accumulates of one token's attention that sees `visible` tokens, in the parallel form of training.

    Each matrix once; then scores and weighted sum, H·visible·(key dims + value dims), for a latent with its keys and
    values expanded. A linear recurrence updates and reads its state, 2·H·D·(D + 1), whatever it sees. Biases, norms,
    softmax and rotary are left out, as in arXiv 2606.04032.
    """
    projections = sum(matrix.outputs * matrix.inputs for matrix in matrices(variant, sizes).values())
    if variant.recurrence is not Recurrence.NONE:
        return projections + 2 * sizes.heads * sizes.head_dim * (sizes.head_dim + 1)
    key_dims = sizes.head_dim + (sizes.rotary_dims if variant.rotary_apart else 0)
    return projections + sizes.heads * visible * (key_dims + sizes.head_dim)


def _projections(variant: Variant, sizes: LayerSizes) -> dict[str, Matrix]:
    kv_width = variant.kv_heads_for(sizes.heads) * sizes.head_dim
    apart = sizes.rotary_dims if variant.decoupled else 0
    outputs = {"query": sizes.heads * (sizes.head_dim + apart), "key": kv_width, "value": kv_width}
    made: dict[str, Matrix] = {}
    for role in variant.sharing.matrices:
        if role not in variant.unprojected and not (sizes.borrows and role != "query"):
            made |= _map(MATRIX_NAMES[role], outputs[role], sizes, variant, role)
    if apart and not sizes.borrows:
        made["k_rope_proj"] = Matrix(apart, sizes.width, sizes.input_biases)
    return made


def _map(name: str, outputs: int, sizes: LayerSizes, variant: Variant, role: str) -> dict[str, Matrix]:
    """The matrices that make one role: one, or two with a rank or an activation between them."""
    if role == "query" and variant.nonlinear_query:
        hidden = max(1, sizes.width * outputs // (sizes.width + outputs))
        return {
            f"{name}.hidden": Matrix(hidden, sizes.width, False),
            f"{name}.out": Matrix(outputs, hidden, sizes.input_biases),
        }
    if variant.rank is not None:
        return {
            f"{name}.down": Matrix(variant.rank, sizes.width, False),
            f"{name}.up": Matrix(outputs, variant.rank, sizes.input_biases),
        }
    return {name: Matrix(outputs, sizes.width, sizes.input_biases)}


def _latent(variant: Variant, sizes: LayerSizes) -> dict[str, Matrix]:
    made_width = variant.score_heads_for(sizes.heads) * sizes.head_dim
    apart = sizes.rotary_dims if variant.rotary_apart else 0
    rotary_key = {"k_rope_proj": Matrix(apart, sizes.width, sizes.input_biases)} if apart else {}
    return {
        "q_proj": Matrix(sizes.heads * (sizes.head_dim + apart), sizes.width, sizes.input_biases),
        "latent_proj": Matrix(sizes.latent_dims, sizes.width, sizes.input_biases),
        **rotary_key,
        "k_up_proj": Matrix(made_width, sizes.latent_dims, False),
        "v_up_proj": Matrix(made_width, sizes.latent_dims, False),
    }
