"""Fold a model of transformers in place, and unfold it again."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer, EncoderDecoderCache

from twofold.folding.families import FAMILIES, attention_layers, family_of
from twofold.folding.forms import FACTS, FORMS, Facts, Fold, Unfolded, stock_class
from twofold.folding.rows import PackedLayer, adopt
from twofold.folding.sights import Sights
from twofold.folding.versions import require_known
from twofold.kernels.linear import use_decode_linear

CACHE_NAMES = ("cache", "past_key_values")
"""What forward passes of transformers call their cache; the second is its older name."""


@dataclass(frozen=True, repr=False)
class Folding:
    """What `fold` did: the layers that it changed, those that it left, with the reason, and by number the windows of
    sliding layers, which free what they drop from now on.
    """

    folds: tuple[Fold, ...]
    stays: tuple[Unfolded, ...]
    windows: Mapping[int, int]

    def __repr__(self) -> str:
        forms = ", ".join(dict.fromkeys(one.form for one in self.folds)) or "nothing"
        windows = f"{len(self.windows)} windows are freed"
        return f"Folding({len(self.folds)} layers by {forms}, {len(self.stays)} stay, {windows})"


class AdoptCache:
    """Hook before a model's forward pass: its cache gets the layers of the folded model before masks are made of it."""

    def __init__(self, folding: Folding) -> None:
        self.folding = folding

    def __call__(self, module: PreTrainedModel, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments, with a cache where stock would make one."""
        if str(module.config._attn_implementation).startswith("paged"):
            raise ValueError("a folded model has no paged cache: unfold it for continuous batching")
        given = next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)
        if given is None and args:
            bound = inspect.signature(module.forward).bind_partial(*args).arguments
            given = next((bound[name] for name in CACHE_NAMES if bound.get(name) is not None), None)
        if given is None:
            asked = named.get("use_cache")
            if not (module.config.get_text_config(decoder=True).use_cache if asked is None else asked):
                return args, named
            given = new_cache(module)
            named = named | {"cache": given}
        adopt(given, self.folding.folds, self.folding.windows)
        return args, named


def new_cache(model: PreTrainedModel) -> Cache:
    """The empty cache that transformers makes for a model."""
    if getattr(model.config, "is_encoder_decoder", False):
        return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    config = model.config
    if hasattr(config, "decoder_layers"):  # Whisper's decoder alone, whose layers its configuration does not tell so
        config = copy.deepcopy(config)
        config.num_hidden_layers = config.decoder_layers
    return DynamicCache(config=config)


def plan(model: PreTrainedModel, form: str | None = None) -> Folding:
    """The layers of `model` that fold, those that do not, with the reason, and the windows; nothing is changed.

    `form` is one of `FORMS` that the family has; None for the family's own choice. Raises ValueError where nothing
    folds, with what was looked for, and for a form that no layer takes.
    """
    if form is not None and form not in FORMS:
        raise ValueError(f"unknown form {form!r}: choose one of {', '.join(sorted(set(FORMS) - {'window'}))}")
    folds: list[Fold] = []
    stays: list[Unfolded] = []
    facts = {"sights": Sights()}
    for name, module, around, family in attention_layers(model):
        if form is not None and form not in family.FORMS:
            kind = model.config.get_text_config(decoder=True).model_type
            raise ValueError(f"a {kind} model folds by form {' or '.join(family.FORMS)}, and not by {form}")
        answer = family.plan_layer(around, module, name, form or family.FORMS[0], facts)
        if isinstance(answer, Fold):
            folds.append(answer)
        elif answer is not None:
            stays.append(answer)
    windows = sliding_layers(model, {one.layer for one in folds})
    if not folds and (form is not None or not windows):
        raise ValueError(_nothing_folds(model, stays, windows))
    return Folding(tuple(folds), tuple(stays), windows)


def fold(model: PreTrainedModel, form: str | None = None) -> Folding:
    """Make `model` cache rows, in place: its outputs stay what they were, and no weight is changed.

    From then on every cache of the model, made by `generate()`, by a forward pass or by a user, gets layers that store
    rows when it is first used. `unfold` restores the model. `form` is one of `FORMS` that the family has. Nothing is
    downloaded. Layers that do not fold stay as they are; sliding ones free what they drop.

    Raises ValueError, with what was looked for, where no layer folds, and for what is not supported: a model that is
    folded already, split over devices by accelerate's hooks, or sharded by tensor parallelism.
    """
    _require_plain(model)
    folding = plan(model, form)
    _refuse_weights(model, folding.folds)
    require_known(dict.fromkeys(family_of(model.get_submodule(one.name)) for one in folding.folds))
    for one in folding.folds:
        module = model.get_submodule(one.name)
        module.__dict__[FACTS] = Facts(one)
        module.__class__ = one.folded
        use_decode_linear(module)  # single tokens then read a matrix at the memory's speed
    hook = AdoptCache(folding)
    for module in _with_cache(model, folding.folds):
        module.register_forward_pre_hook(hook, with_kwargs=True)
    return folding


def folded_cache(model: PreTrainedModel) -> Cache:
    """An empty cache for `model` as it is, which stores once what its layers hand over twice: for `generate(cache=…)`.

    Keys and values are made of the rows again at each step, layer by layer, so that it takes more time than a folded
    model. Raises ValueError where no layer can be stored so; those whose saving needs another forward pass cannot.
    """
    _require_plain(model)
    cache = new_cache(model)
    packed = 0
    for name, module, around, family in attention_layers(model):
        one = family.plan_layer(around, module, name, family.FORMS[0], {})
        if not isinstance(one, Fold):
            continue
        if one.keeper is not None:
            cache.layers[one.layer] = one.keeper(cache.layers[one.layer], one)
            packed += 1
        elif (packing := family.stored_once(module, one)) is not None:
            cache.layers[one.layer] = PackedLayer(one, packing)
            packed += 1
    windows = sliding_layers(model, set())
    if not packed and not windows:
        raise ValueError(f"no layer of this {model.config.model_type} model can be stored once as it is: try fold")
    adopt(cache, (), windows)
    return cache


def unfold(model: PreTrainedModel) -> None:
    """Give `model` its own classes back. Raises ValueError for a model that is not folded, or not as a whole."""
    folding = folding_of(model)
    if folding is None:
        raise ValueError("this model is not folded")
    names = {name for name, module in model.named_modules() if FACTS in module.__dict__}
    if names != {one.name for one in folding.folds}:
        raise ValueError("this is a part of the model that was folded, or a larger one: unfold that very model")
    for module in model.modules():
        if FACTS in module.__dict__:
            use_decode_linear(module, False)
            module.__class__ = stock_class(type(module))
            del module.__dict__[FACTS]
        for key in [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, AdoptCache)]:
            del module._forward_pre_hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)


def folding_of(model: nn.Module) -> Folding | None:
    """What `fold` did to this model or a part of it; None where it was not applied."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, AdoptCache):
                return hook.folding
    return None


def sliding_layers(model: PreTrainedModel, but: set[int]) -> dict[int, int]:
    """The window of each layer that stock keeps in a sliding cache layer, but for those in `but`."""
    layers = DynamicCache(config=model.config).layers
    return {
        number: layer.sliding_window
        for number, layer in enumerate(layers)
        if number not in but and type(layer) is DynamicSlidingWindowLayer
    }


def _nothing_folds(model: PreTrainedModel, stays: Sequence[Unfolded], windows: Mapping[int, int]) -> str:
    """What was looked for in vain, and what would be needed."""
    kind = model.config.model_type
    if kind.startswith("twofold"):
        return "a Twofold model stores what is shared once as it is: there is nothing to fold"
    if stays:
        reasons = {one.reason: one.layer for one in reversed(stays)}
        found = "; ".join(f"layer {layer}: {reason}" for reason, layer in sorted(reasons.items(), key=lambda r: r[1]))
        return f"nothing in this {kind} model folds: {found}"
    if windows:
        return (
            f"no layer of this {kind} model has a form: leave it out, and its {len(windows)} sliding windows are freed"
        )
    return (
        f"nothing in this {kind} model folds: looked for {', '.join(FAMILIES)}, whose key and value share numbers, and "
        "for sliding windows, and found neither. Keys and values of separate projections (Llama, Qwen, Mistral) cannot "
        "be stored once without changing outputs: that takes conversion, and training afterwards"
    )


def _require_plain(model: nn.Module) -> None:
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"fold takes a model of transformers, not a {type(model).__name__}")
    if folding_of(model) is not None:
        raise ValueError("this model is folded already: unfold it first")
    if (getattr(model, "tp_size", None) or 1) > 1:
        raise ValueError(f"this model is sharded by tensor parallelism over {model.tp_size} devices: load it unsharded")


def _refuse_weights(model: PreTrainedModel, folds: Sequence[Fold]) -> None:
    families = {name: family for name, _, _, family in attention_layers(model)}
    for one in folds:
        module = model.get_submodule(one.name)
        if "forward" in module.__dict__:
            raise ValueError(
                f"{one.name} carries a forward pass of its own (accelerate's device_map, or another patch), which "
                "would go on as if nothing were folded: load the model on one device, without patches"
            )
        if next(module.parameters()).is_meta:
            raise ValueError("this model has no weights (it is on the meta device): load them, or ask for a report")
        if obstacle := families[one.name].weights_obstacle(module, one.form):
            raise ValueError(f"{one.name} cannot be folded: {obstacle}")


def _with_cache(model: PreTrainedModel, folds: Sequence[Fold]) -> list[PreTrainedModel]:
    """The models, one inside the other, that hand a cache to folded layers; all, where only windows are freed."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, PreTrainedModel)
        and (not folds or any(one.name.startswith(f"{name}." if name else "") for one in folds))
        and set(CACHE_NAMES) & set(inspect.signature(module.forward).parameters)
    ]
