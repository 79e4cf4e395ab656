"""Gemma 4's global layers, whose key and value come from one projection (arXiv 2607.02770).

With n the projection without scale, normalised, the value is n and the key RoPE(γ ⊙ n). "Proportional" RoPE turns the
pairs (i, i + d/2) with i < r/2, and leaves the rest. With head dims in the order (turned, rest):

- form "row": [kʳ | n_rest | n_turned], of which the key is [0:d) and the value [r:d+r). The key's rest lacks its γ,
  which goes to the query: q · (γ ⊙ n) = (γ ⊙ q) · n. d + r numbers per head, where transformers stores 2d.
- form "value": [γ ⊙ n_turned | n_rest], d numbers. Its first r dims are turned to their position when they are read as
  key, and what is read of them as value is divided by γ after the sum.

Layers that read another layer's keys and values (`num_kv_shared_layers`) get its rows, and its γ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from twofold.cache.kept import KeptRows
from twofold.folding.attending import attended, decoded, decodes, kept_after, mask_over, stock
from twofold.folding.forms import Facts, Fold, Packing, Unfolded, facts_of, folded_class
from twofold.folding.sights import UNKNOWN, Sight
from twofold.variants.layout import RowLayout

FORMS = ("row", "value")
"""The first is what a fold is by default."""


class SharedRows(NamedTuple):
    """What a layer hands to those that read its rows."""

    rows: KeptRows
    gamma_D: Tensor  # noqa: N815


class FoldedGemma4:
    """Forward of `Gemma4TextAttention` over rows."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        shared_kv_states: Any,
        cache: Any = None,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock layer's; without a cache it is the stock layer's."""
        own = None
        if self.is_kv_shared_layer:
            own = shared_kv_states[self.layer_type]
        elif cache is not None:
            own = SharedRows(_kept(self, hidden_states, position_embeddings, cache), self.k_norm.weight)
        if not isinstance(own, SharedRows):
            return super().forward(  # type: ignore[misc]
                hidden_states, position_embeddings, attention_mask, shared_kv_states, cache=cache, **named
            )
        attention_mask = mask_over(own.rows, attention_mask)
        sight = (
            facts_of(self)
            .fold.facts["sights"]
            .of(attention_mask, named.get("position_ids"), hidden_states.shape[1], own.rows.heads_BGSW.shape[2])
        )
        if facts_of(self).fold.facts["by_value"]:
            _require_places(self, cache, sight)
        if self.store_full_length_kv:
            told = named.get("return_shared_kv_states", False)
            shared_kv_states[self.layer_type] = unpacked(facts_of(self), *own, sight.first_B) if told else own
        query_BHTD = _query(self, hidden_states, position_embeddings, own.gamma_D)
        read_BTHD, weights = _attend(self, query_BHTD, own, attention_mask, sight, named)
        return self.o_proj(read_BTHD.flatten(2)), weights


def plan_layer(model: PreTrainedModel, module: Any, name: str, form: str, facts: dict[str, Any]) -> Fold | Unfolded:
    """How a `Gemma4TextAttention` folds. `model` is the text model, whose rotary frequencies it reads."""
    layer, heads = module.layer_idx, module.config.per_layer_config[module.layer_idx].num_key_value_heads
    if module.is_sliding:
        return Unfolded(layer, name, "a sliding layer, with projections of its own for key and value")
    if not module.use_alternative_attention:
        return Unfolded(layer, name, "key and value have projections of their own (attention_k_eq_v is off)")
    if not module.is_causal:
        return Unfolded(layer, name, "it looks in both directions and keeps no cache")
    dims = module.head_dim
    frequencies, scaling = _frequencies(model.rotary_emb, module.layer_type)
    if scaling != 1:
        return Unfolded(layer, name, "its rotary embedding scales what it does not turn")
    turned = torch.nonzero(frequencies).flatten()
    rotary = 2 * len(turned)
    rest = torch.nonzero(frequencies == 0).flatten()
    first, last = torch.cat([turned, turned + dims // 2]), torch.cat([rest, rest + dims // 2])
    if form == "row" and rotary == dims:
        return Unfolded(layer, name, f'all {dims} dims of a key are turned, so a row would save nothing: form="value"')
    by_value = form == "value" or rotary == 0
    key_order, value_order = torch.cat([first, last]), torch.cat([last, first])
    layout = RowLayout.shared(dims) if by_value else RowLayout.partial(dims, rotary)
    return Fold(
        layer=layer,
        name=name,
        form=form,
        layout=None if module.is_kv_shared_layer else layout,
        kv_heads=heads,
        stock=0 if module.is_kv_shared_layer else 2 * heads * dims,
        window=None,
        folded=folded_class(FoldedGemma4, module.__class__),
        facts=facts
        | {
            "rotary": rotary,
            "layer_type": module.layer_type,
            "by_value": by_value,
            "row": layout,
            "order": key_order,
            "value_order": key_order if by_value else value_order,
            "back": torch.argsort(key_order if by_value else value_order),
            "turned": turned,
            "rotary_module": model.rotary_emb,
        },
    )


def _frequencies(rotary: Any, layer_type: str) -> tuple[Tensor, float]:
    """Angles per position of each pair, and what cosines and sines are multiplied by; also without weights."""
    frequencies = getattr(rotary, f"{layer_type}_inv_freq")
    if frequencies.is_meta:
        config = rotary.config.per_layer_config[layer_type]
        frequencies, _ = rotary.rope_init_fns[layer_type](config, "cpu", layer_type=layer_type)
    return frequencies, getattr(rotary, f"{layer_type}_attention_scaling")


def _turning(facts: Facts, like: Tensor) -> Tensor:
    """Angles per position of the pairs that are turned, [r/2], float32, as the model has them now: queries are turned
    by the same, which a change of dtype rounds.
    """
    rotary = facts.fold.facts["rotary_module"]
    frequencies = getattr(rotary, f"{facts.fold.facts['layer_type']}_inv_freq").to(like.device)
    return frequencies.index_select(0, facts.tensor("turned", like)).float()


def weights_obstacle(module: Any, form: str) -> str | None:
    """Why this module's weights do not allow the form: γ is divided by, where values alone are kept."""
    if form == "value" and not module.is_kv_shared_layer and not bool((module.k_norm.weight != 0).all()):
        return 'a scale of its key norm is 0, and what is read would be divided by it: fold with form="row"'
    return None


def stored_once(module: Any, fold: Fold) -> Packing | None:
    """How a cache of a stock model keeps this layer's keys and values as a row; None where it cannot."""
    if fold.layout is None or fold.form != "row":
        return None
    facts = Facts(fold)

    def pack(key_BGTD: Tensor, value_BGTD: Tensor) -> Tensor:
        first = key_BGTD.index_select(-1, facts.tensor("order", key_BGTD)[: fold.facts["rotary"]])
        return torch.cat([first, value_BGTD.index_select(-1, facts.tensor("value_order", value_BGTD))], dim=-1)

    return Packing(pack, lambda rows: unpacked(facts, rows, module.k_norm.weight))


def unpacked(facts: Facts, rows: KeptRows, gamma_D: Tensor, first_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The keys and values [B, G, S, D] that the stock layer would keep, made from its rows."""
    layout, rotary = facts.fold.facts["row"], facts.fold.facts["rotary"]
    key_BGSD = _keys(facts, rows, first_B)
    order = facts.tensor("order", key_BGSD)
    scale_D = torch.cat([gamma_D.new_ones(rotary), gamma_D.index_select(0, order[rotary:])])
    key_BGSD = (key_BGSD * scale_D.to(key_BGSD.dtype)).index_select(-1, torch.argsort(order))
    return key_BGSD, _values(facts, rows.heads_BGSW[..., layout.value.start : layout.value.stop], gamma_D)


def _kept(module: Any, x_BTM: Tensor, turns: tuple[Tensor, Tensor], cache: Any) -> KeptRows:
    """Make the rows of new tokens, append them, and return all."""
    facts = facts_of(module)
    fold, rotary = facts.fold, facts.fold.facts["rotary"]
    made_BTGD = module.k_proj(x_BTM).unflatten(-1, (-1, module.head_dim))
    key_BTGD, value_BTGD = module.k_norm(made_BTGD), module.v_norm(made_BTGD)
    if not fold.facts["by_value"]:
        key_BTGD = _turned(module, key_BTGD, turns)
    first_BTGD = key_BTGD.index_select(-1, facts.tensor("order", x_BTM)[:rotary])
    order = facts.tensor("value_order", x_BTM)
    rest_BTGD = value_BTGD.index_select(-1, order[rotary:] if fold.facts["by_value"] else order)
    return kept_after(module, cache, torch.cat([first_BTGD, rest_BTGD], dim=-1).transpose(1, 2))


def _require_places(module: Any, cache: Any, sight: Sight) -> None:
    """Keys are turned by their place among the rows, which must tell their positions."""
    if sight.first_B is None:
        raise ValueError(
            "a cache of values turns keys by their place, and these positions have gaps: give positions one after the "
            'other, or fold with form="row"'
        )
    if not module.is_kv_shared_layer:
        cache.layers[facts_of(module).fold.layer].stands(sight.first_B)


def _query(module: Any, x_BTM: Tensor, turns: tuple[Tensor, Tensor], gamma_D: Tensor) -> Tensor:
    """[B, H, T, D], turned, its dims in the order of the row's key; the rest times γ, which that key lacks."""
    facts = facts_of(module)
    order, rotary = facts.tensor("order", x_BTM), facts.fold.facts["rotary"]
    query_BTHD = module.q_norm(module.q_proj(x_BTM).unflatten(-1, (-1, module.head_dim)))
    query_BTHD = _turned(module, query_BTHD, turns).index_select(-1, order)
    ones_D = gamma_D.new_ones(rotary)
    scale_D = torch.cat([ones_D, gamma_D.index_select(0, order[rotary:])])
    return (query_BTHD * scale_D.to(query_BTHD.dtype)).transpose(1, 2)


def _attend(
    module: Any, query_BHTD: Tensor, own: SharedRows, mask: Tensor | None, sight: Sight, named: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """[B, T, H, D] in the stock layer's order of dims, and the weights."""
    facts = facts_of(module)
    fold, rows, layout = facts.fold, own.rows, facts.fold.facts["row"]
    by_value = fold.facts["by_value"] and fold.facts["rotary"] > 0
    first = _first_position(sight) if by_value else 0
    weights = None
    if first is not None and decodes(module, query_BHTD, rows, layout, sight):
        turns = _turning(facts, query_BHTD) if by_value else None
        read_BTHD = decoded(query_BHTD, rows, layout, sight, module.scaling, frequencies=turns, first_position=first)
    else:
        key_BGSD = _keys(facts, rows, sight.first_B)
        value_BGSD = rows.heads_BGSW[..., layout.value.start : layout.value.stop]
        read_BTHD, weights = attended(
            module, query_BHTD, key_BGSD, value_BGSD, mask, scaling=module.scaling, sliding_window=None, **named
        )
    return _values(facts, read_BTHD, own.gamma_D), weights


def _keys(facts: Facts, rows: KeptRows, first_B: Tensor | None) -> Tensor:
    """[B, G, S, D] in the row's order; turned where rows are values, of which the first stands at `first_B`."""
    rotary, layout = facts.fold.facts["rotary"], facts.fold.facts["row"]
    key_BGSD = rows.heads_BGSW[..., layout.key.start : layout.key.stop]
    if not facts.fold.facts["by_value"] or rotary == 0:
        return key_BGSD
    assert first_B is not None
    place_BS = first_B[:, None] + torch.arange(key_BGSD.shape[2], device=key_BGSD.device)
    angle_BSR = place_BS[..., None].float() * _turning(facts, key_BGSD)
    cos, sin = (turn(angle_BSR)[:, None].to(key_BGSD.dtype) for turn in (torch.cos, torch.sin))
    one, other = key_BGSD[..., : rotary // 2], key_BGSD[..., rotary // 2 : rotary]
    turned = [one * cos - other * sin, other * cos + one * sin]
    return torch.cat([*turned, key_BGSD[..., rotary:]], dim=-1)


def _values(facts: Facts, read_BTHD: Tensor, gamma_D: Tensor) -> Tensor:
    """What was read, in the stock layer's order of dims and without the γ that rows of values carry."""
    if facts.fold.facts["by_value"] and (rotary := facts.fold.facts["rotary"]):
        scale_D = gamma_D.index_select(0, facts.tensor("order", read_BTHD)[:rotary]).reciprocal()
        scale_D = torch.cat([scale_D, gamma_D.new_ones(len(gamma_D) - rotary)])
        read_BTHD = read_BTHD * scale_D.to(read_BTHD.dtype)
    return read_BTHD.index_select(-1, facts.tensor("back", read_BTHD))


def _turned(module: nn.Module, x_BTHD: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    return stock(module, "apply_rotary_pos_emb")(x_BTHD, *turns, unsqueeze_dim=2)


def _first_position(sight: Sight) -> int | None:
    """Where the first row stands that a sequence sees, if it is the same in all; the kernel turns keys from there."""
    if sight.first_B is None or torch.compiler.is_compiling():
        return None
    first_B = sight.first_B if sight.starts_B is None else sight.first_B + sight.starts_B
    seen_B = sight.first_B != UNKNOWN
    first = int(first_B[seen_B][0]) if bool(seen_B.any()) else 0
    return first if bool((first_B[seen_B] == first).all()) else None
