"""All measures of one model, put together: first of its weights, then of what it computes on a text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from twofold.environment import environment
from twofold.explain.activation_rank import activation_ranks
from twofold.explain.activation_similarity import activation_similarity, tokens_needed
from twofold.explain.activations import run
from twofold.explain.attention_patterns import attention_patterns, repetition_scores
from twofold.explain.circuits import composition_measures, weight_circuits
from twofold.explain.cost import cost_of
from twofold.explain.layer_weights import LayerWeights, folded
from twofold.explain.load import open_model
from twofold.explain.probes import probe_measures
from twofold.explain.rank import weight_ranks
from twofold.explain.reading import MOST_MAPS, Given, Text, maps_of, read_text, repeated_text
from twofold.explain.record import AttentionMap, Explanation, LayerMeasures
from twofold.explain.scale import scale_measures
from twofold.explain.sharing import Rows
from twofold.explain.sharing_correlation import summary
from twofold.explain.sharing_loss import (
    Halves,
    foretold_by_inputs,
    foretold_by_weights,
    halves,
    measured,
    own_loss,
    require_losses,
)
from twofold.explain.sharing_places import refusals
from twofold.explain.similarity import weight_similarity
from twofold.explain.vocabulary import vocabulary_product
from twofold.explain.weights import read_weights

Progress = Callable[[str, int, int], None]
Measures = Mapping[str, float | list[float]]
Found = dict[int, dict[str, dict[str, float | list[float]]]]
"""Measures by layer and section."""

BY_HEAD = re.compile("_heads(?=_random$|$)")
"""What names of lists with one number for each head have."""
FACTS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv heads": "num_key_value_heads",
    "head dim": "head_dim",
    "vocabulary": "vocab_size",
}


def explain(
    model: str,
    *,
    text: Text | Given | None = None,
    layers: tuple[int, ...] | None = None,
    patterns: bool = False,
    sharing: bool = False,
    seed: int = 0,
    command: str = "",
    progress: Progress | None = None,
) -> Explanation:
    """Measure the model of that name (`load.open_model`), every layer or `layers`, which count from 0.

    Without a text only its weights are read; `patterns` lets it read repeated random tokens as well, and `sharing`
    measures the loss on the text with the keys and values of one layer shared at a time. A text may come as windows of
    token ids, such as examples of a task. `progress` is called with (stage, done, total). Raises ValueError for a model
    that cannot be opened or read, for layers that it lacks, for a text without two tokens, for `sharing` without a text
    or in a model that predicts no next token, and for weights or a loss that hold NaN or infinity.
    """
    if sharing and text is None:
        raise ValueError("the cost of sharing is measured on a text: give one with --text, or leave --sharing out")
    told = progress or (lambda stage, done, total: None)
    opened = open_model(model, exact=text is not None or patterns)
    count = opened.model.config.get_text_config(decoder=True).num_hidden_layers
    chosen = tuple(range(count)) if layers is None else layers
    if absent := [layer for layer in chosen if layer >= count]:
        raise ValueError(f"{model} has {count} layers, from 0 to {count - 1}, and no layer {absent[0]}")
    found: Found = {layer: {} for layer in chosen}
    given = read_text(opened, text) if isinstance(text, Text) else text  # its faults are told before the work
    parts = None if given is None else halves(given.ids_BT)
    if parts is not None and sharing:
        require_losses(opened.model, parts)
    _weights(opened.model, found, seed, told)
    baseline = own_loss(opened.model, parts) if parts is not None and sharing else None
    maps: list[AttentionMap] = []
    made: dict[int, dict[str, Rows]] = {}
    dims = 0
    if given is not None and parts is not None:
        maps, made, dims = _activations(opened.model, found, given, parts, seed, told)
    if patterns:
        _repetition(opened.model, found, seed, told)
    if parts is not None and baseline is not None:
        _losses(opened.model, found, made, parts, baseline, told)
    cost, note = cost_of(opened.model)
    unshared = refusals(opened.model, chosen) if sharing else []
    notes = (note, *unshared, *(_notes(found, maps, given.read.tokens, dims) if given else ()))
    explanation = Explanation(
        model=model,
        variant=opened.variant,
        architecture=_facts(opened.model),
        seed=seed,
        text=given.read if given else None,
        layers=tuple(_layer(layer, sections) for layer, sections in found.items()),
        maps=tuple(maps),
        cost=cost,
        notes=tuple(line for line in notes if line),
        command=command,
        environment=environment(),
    )
    if baseline is None or parts is None:
        return explanation
    tokens = parts.fitted_BT.numel(), parts.scored_BT[:, 1:].numel()
    return explanation.model_copy(update={"sharing": summary(baseline, *tokens, explanation.series, seed)})


def _weights(model: PreTrainedModel, found: Found, seed: int, progress: Progress) -> None:
    """What the weights say. Circuits are of weights into which their norms are folded; composition is with the layer
    right below, where that is read as well.
    """
    tokens_MM = vocabulary_product(model)
    below: LayerWeights | None = None
    for done, weights in enumerate(read_weights(model, tuple(found))):
        progress("weights", done, len(found))
        weights.require_finite()
        sections = found[weights.layer]
        sections["similarity"] = weight_similarity(weights, seed)
        sections["rank"] = weight_ranks(weights, seed)
        sections["sharing"] = foretold_by_weights(model, weights.layer)
        circuit = folded(weights)
        sections["circuits"] = weight_circuits(circuit, tokens_MM)
        if below is not None and below.layer == circuit.layer - 1:
            sections["circuits"] |= composition_measures(below, circuit, seed)
        below = circuit


def _activations(
    model: PreTrainedModel, found: Found, given: Given, parts: Halves, seed: int, progress: Progress
) -> tuple[list[AttentionMap], dict[int, dict[str, Rows]], int]:
    """What the model computes on a text. Gives its attention maps over the first tokens, and by layer and method the
    maps of shared keys and values, fitted on the text's first half; and the most dims of a layer's keys or values.
    """
    maps: list[AttentionMap] = []
    made: dict[int, dict[str, Rows]] = {}
    dims = 0
    for done, activations in enumerate(run(model, given.ids_BT, layers=tuple(found))):
        progress("activations", done, len(found))
        layer = activations.layer
        dims = max(dims, *(math.prod(role.shape[2:]) for role in (activations.k_BTGD, activations.v_BTGD)))
        sections = found[layer]
        sections["similarity"] |= activation_similarity(activations, seed)
        sections["rank"] |= activation_ranks(activations, seed)
        sections["circuits"] |= probe_measures(activations, given.ids_BT, seed)
        sections["attention"] = attention_patterns(activations)
        sections["scale"] = scale_measures(activations)
        foretold, made[layer] = foretold_by_inputs(model, layer, parts.fitted(activations.row_x_BTM))
        sections["sharing"] |= foretold
        maps += maps_of(activations, len(given.read.pieces), MOST_MAPS - len(maps))
    return maps, made, dims


def _losses(
    model: PreTrainedModel,
    found: Found,
    made: dict[int, dict[str, Rows]],
    parts: Halves,
    baseline: float,
    progress: Progress,
) -> None:
    """What sharing costs in each layer alone, over the model's own loss."""
    losses = measured(model, made, parts.scored_BT, baseline, partial(progress, "sharing"))
    for layer, measures in losses.items():
        found[layer]["sharing"] |= measures


def _repetition(model: PreTrainedModel, found: Found, seed: int, progress: Progress) -> None:
    """How heads look on random tokens that come twice; names begin with `repeated_`."""
    ids_BT = repeated_text(model.config.get_text_config(decoder=True), seed)
    for done, activations in enumerate(run(model, ids_BT, layers=tuple(found))):
        progress("repeated tokens", done, len(found))
        scores = repetition_scores(activations, ids_BT.shape[1] // 2)
        of_layer = found[activations.layer].setdefault("attention", {})
        of_layer |= {f"repeated_{name}": value for name, value in scores.items()}


def _notes(found: Found, maps: list[AttentionMap], tokens: int, dims: int) -> list[str]:
    notes = []
    mapped = len({one.layer for one in maps})
    if 0 < mapped < len(found):
        notes.append(f"Attention maps are kept of {mapped} of the {len(found)} layers.")
    if tokens < (least := tokens_needed(dims)):
        notes.append(
            f"R² of keys or values with {dims} dims needs {least:,} tokens, and {tokens:,} were read: give more with "
            "--tokens."
        )
    return notes


def _layer(layer: int, sections: Mapping[str, Measures]) -> LayerMeasures:
    """The record of a layer: lists by head go to `heads`, under `section.name`."""
    numbers: dict[str, dict[str, Any]] = {}
    heads: dict[str, tuple[float | None, ...]] = {}
    for section, measures in sections.items():
        numbers[section] = {}
        for name, value in measures.items():
            if not isinstance(value, list):
                numbers[section][name] = _finite(value)
            elif BY_HEAD.search(name):
                heads[f"{section}.{BY_HEAD.sub('', name)}"] = tuple(map(_finite, value))
            else:
                numbers[section][name] = tuple(map(_finite, value))
    return LayerMeasures(layer=layer, heads=heads, **numbers)


def _finite(value: float) -> float | None:
    """None for what has no value, as the rank of a matrix of zeros."""
    return value if math.isfinite(value) else None


def _facts(model: PreTrainedModel) -> dict[str, int | float | str]:
    config = model.config.get_text_config(decoder=True)
    named = {fact: getattr(config, name, None) for fact, name in FACTS.items()}
    return {"type": config.model_type} | {fact: value for fact, value in named.items() if value}
