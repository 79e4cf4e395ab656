"""Attention over a layer's input, for multi-head layers without rotary embedding, whose key and value are affine in it.

The cache keeps the input x of a token once, M numbers, where transformers keeps key and value, 2M. For head h with
k = W_K x + b_K and v = W_V x + b_V, a query q and weights p that add up to 1:

- q · k = (W_Kᵀ q) · x + q · b_K. The last term is the same for all keys of a query, and the softmax does not see it.
- Σ p v = W_V (Σ p x) + b_V.

So W_K moves to the query and W_V behind the sum ("absorbed", as DeepSeek-V2 does with its latent, arXiv 2405.04434).
All heads then read one row, and a new token still costs one product with each matrix; but a cached token takes M
products for each head, where stock takes as many as the head has dims. For many queries at once keys and values of all
rows are made ("expanded"), and the model's own attention function reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from twofold.cache.kept import KeptRows
from twofold.folding.attending import attended, decoded, decodes, kept_after, mask_over
from twofold.folding.forms import Fold, facts_of, folded_class
from twofold.folding.rows import FoldedLayer, adopt
from twofold.folding.sights import Sight
from twofold.kernels.decode_native import MOST_POSITIONS
from twofold.variants.layout import RowLayout

FORMS = ("input",)
"""What these families have."""

_ABSORBING = ("sdpa", "eager")  # their masks are tensors, and what they compute is known
_PLAIN_TENSORS = (Tensor, nn.Parameter)  # not other subclasses: quantised weights are such


class Matrices(NamedTuple):
    """What the heads make of an input: key = `key_HDM` x + what cancels, value = `value_HDM` x + `bias_HD`. Views."""

    key_HDM: Tensor  # noqa: N815
    value_HDM: Tensor  # noqa: N815
    bias_HD: Tensor | None  # noqa: N815


class Parts(NamedTuple):
    """What a family tells of its layer in one pass.

    `query_BHTD` are the new tokens' queries, `scale` what the scores are multiplied by. `matrices` is None where a
    projection is more than its matrix: a wrapped or hooked one. `states` makes keys and values [B, H, S, D] of inputs
    [B, S, M]. `attend`, where a family has it, stands for the model's attention function.
    """

    query_BHTD: Tensor  # noqa: N815
    scale: float
    matrices: Matrices | None
    states: Callable[[Tensor], tuple[Tensor, Tensor]]
    dropout: float
    attend: Callable[..., tuple[Tensor, Tensor]] | None = None


def attend_inputs(
    module: Any, x_BTM: Tensor, cache: Any, mask: Tensor | None, parts: Parts, named: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Append inputs to the cache and read all: [B, T, H·D], and the weights where the model's function gives them."""
    fold = facts_of(module).fold
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if len(cache.layers) <= fold.layer or not isinstance(cache.layers[fold.layer], FoldedLayer):
        adopt(cache, (fold,), {})  # a cache that the model made during the pass
    rows = kept_after(module, cache, x_BTM.unsqueeze(1))
    mask = mask_over(rows, mask)
    if parts.matrices is not None and absorbs(module, parts, mask, rows):
        read_BHTD, weights = _absorbed(module, parts, parts.matrices, rows, mask)
        return read_BHTD.transpose(1, 2).flatten(2).to(parts.query_BHTD.dtype), weights
    alone = x_BTM.shape[1] == rows.heads_BGSW.shape[2]
    key_BHSD, value_BHSD = parts.states(x_BTM if alone else rows.heads_BGSW[:, 0])
    if parts.attend is not None:
        read_BTHD, weights = parts.attend(parts.query_BHTD, key_BHSD, value_BHSD, mask)
    else:
        read_BTHD, weights = attended(
            module,
            parts.query_BHTD,
            key_BHSD,
            value_BHSD,
            mask,
            dropout=parts.dropout if module.training else 0.0,
            scaling=parts.scale,
            **named,
        )
    return read_BTHD.flatten(2), weights


def absorbs(module: Any, parts: Parts, mask: Tensor | None, rows: KeptRows) -> bool:
    """Whether the matrices go to the queries, rather than keys and values of all rows being made.

    Per row, T queries take 2·T·H·M products against the 2·M² that its key and value take: fewer where T < M / H = D.
    Measured, they draw level a little below T = D, and so half of D is the limit.
    """
    _, _, queries, dims = parts.query_BHTD.shape
    held = rows.heads_BGSW.shape[2]
    return (
        2 * queries <= dims
        and queries < held
        and module.config._attn_implementation in _ABSORBING
        and (queries == 1 if mask is None else mask.ndim == 4 and mask.shape[-1] == held)
        and not (module.training and parts.dropout)
    )


def _absorbed(
    module: Any, parts: Parts, matrices: Matrices, rows: KeptRows, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """[B, H, T, D] in float32 at least, and the weights where eager attention gives them.

    Absorbed queries and sums of inputs are wider than what they stand for, and would lose more by rounding to bfloat16.
    """
    facts = facts_of(module).fold.facts
    wide = torch.promote_types(parts.query_BHTD.dtype, torch.float32)
    query_BHTM = _times(parts.query_BHTD.to(wide), matrices.key_HDM.to(wide))
    queries, held = query_BHTM.shape[2], rows.heads_BGSW.shape[2]
    sight = facts["sights"].of(mask, None, queries, held) if queries <= MOST_POSITIONS else Sight(plain=False)
    weights = None
    if decodes(module, query_BHTM, rows, facts["row"], sight):
        read_BHTM = decoded(query_BHTM, rows, facts["row"], sight, parts.scale).transpose(1, 2)
        seen = _seen(sight, queries, held)
    else:
        read_BHTM, weights_BHTS, seen = _by_products(query_BHTM * parts.scale, rows, mask)
        if module.config._attn_implementation == "eager":
            weights = weights_BHTS.to(parts.query_BHTD.dtype)
    read_BHTD = _times(read_BHTM, matrices.value_HDM.to(wide).transpose(1, 2))
    if matrices.bias_HD is not None:
        bias_H1D = matrices.bias_HD.to(wide).unsqueeze(1)
        read_BHTD = read_BHTD + (bias_H1D if seen is None else bias_H1D * seen)
    return read_BHTD, weights


def _times(x_BHTK: Tensor, matrix_HKN: Tensor) -> Tensor:
    """[B, H, T, N]: each head by its matrix, which is read once for all sequences."""
    batch, _, queries, _ = x_BHTK.shape
    y_HXN = torch.bmm(x_BHTK.transpose(0, 1).flatten(1, 2), matrix_HKN)
    return y_HXN.unflatten(1, (batch, queries)).transpose(0, 1)


def _by_products(query_BHTM: Tensor, rows: KeptRows, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """[B, H, T, M] by two matrix products over the rows, the weights, and which queries see a row (None for all)."""
    heads_and_queries = query_BHTM.shape[1:3]
    rows_BSM = rows.heads_BGSW[:, 0].to(query_BHTM.dtype)
    scores_BHTS = torch.bmm(query_BHTM.flatten(1, 2), rows_BSM.transpose(1, 2)).unflatten(1, heads_and_queries)
    seen = None
    if mask is None:
        weights_BHTS = scores_BHTS.softmax(-1)
    elif mask.dtype == torch.bool:
        weights_BHTS = scores_BHTS.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
        seen = mask.any(-1, keepdim=True)
    else:
        weights_BHTS = (scores_BHTS + mask).softmax(-1)
    read_BHTM = torch.bmm(weights_BHTS.flatten(1, 2), rows_BSM).unflatten(1, heads_and_queries)
    return read_BHTM, weights_BHTS, seen


def _seen(sight: Sight, queries: int, held: int) -> Tensor | None:
    """Which queries stand at their sequence's start or behind it, [B, 1, T, 1]; the kernel reads zeros for others."""
    if sight.starts_B is None:
        return None
    own_T = torch.arange(held - queries, held, device=sight.starts_B.device)
    return (own_T >= sight.starts_B[:, None])[:, None, :, None]


# What families share in planning ------------------------------------------------------------------------------


def plan_inputs(module: Any, name: str, form: str, facts: dict[str, Any], folded: type, heads: int, width: int) -> Fold:
    """A layer of `heads` heads whose key and value are made of inputs of `width` numbers."""
    row = RowLayout.input(width)
    return Fold(
        layer=module.layer_idx,
        name=name,
        form=form,
        layout=row,
        kv_heads=1,
        stock=2 * heads * module.head_dim,
        window=None,
        folded=folded_class(folded, module.__class__),
        facts=facts | {"row": row},
    )


def stored_once(module: Any, fold: Fold) -> None:
    """A stock model hands keys and values to its cache, and no input."""


def is_plain(layer: nn.Module, kinds: Sequence[type[nn.Module]]) -> bool:
    """Whether a projection is one of these kinds of module, as it was made, with weights that can be read."""
    return type(layer) in kinds and "forward" not in layer.__dict__ and type(layer.weight) in _PLAIN_TENSORS


def is_read_alone(layer: nn.Module) -> bool:
    """Whether nobody has asked to be called when a projection is: its matrix may then be used without calling it."""
    return not (layer._forward_hooks or layer._forward_pre_hooks)


def obstacle(module: nn.Module, names: Sequence[str], kinds: Sequence[type[nn.Module]]) -> str | None:
    """Why the matrices of these projections cannot be moved, or None."""
    for name in names:
        layer = module.get_submodule(name)
        if not is_plain(layer, kinds):
            weight = getattr(layer, "weight", None)  # a wrapper may hide it
            return (
                f"its {name} is a {type(layer).__name__} of {type(weight).__name__}, and not a plain "
                f"{kinds[0].__name__} whose matrix can move to the query: merge the adapter "
                "(peft's merge_and_unload), or load the model without quantisation and on one device"
            )
    return None
