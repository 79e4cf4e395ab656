"""What reaches queries, keys and values while a model trains: how large it is, and whether shared roles agree.

Where key and value are one vector, its gradient is the sum of what it gets as a key and what it gets as a value. The
two are parts of one tensor's gradient and are nowhere apart in the model. They are told apart where the scores read
them: the layer hands its queries, keys and values to attention as views of their own, each view's gradient is taken,
and is followed from there back to the output of the projection, past slices, rotary and norms, by autograd itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twofold.attention.latent import LatentProjections
from twofold.attention.projections import FUSED_NAME, Projections
from twofold.attention.scores import eager
from twofold.training.metrics import LayerGradients
from twofold.variants.choices import ROLES
from twofold.variants.tensors import MATRIX_NAMES

LETTERS = {"query": "q", "key": "k", "value": "v"}
PAIRS = tuple(combinations(ROLES, 2))


class _Source(NamedTuple):
    """Where a role's vectors come from: a module of the seam, or its input where there is none, and which columns."""

    module: nn.Module
    takes_input: bool
    columns: slice


class GradientWatch(TrainerCallback):
    """Every so many steps notes what reaches the outputs of the query, key and value projections of each layer.

    `found` maps a step to one `LayerGradients` for each layer; linear recurrences, without scores, are left out. L is
    the loss that the step minimises, a mean over its tokens, before clipping:

    - `variance_q`, `_k`, `_v`: the mean square of the entries of dL/dq, dL/dk, dL/dv. Where roles share a projection,
      each is the part that comes by that role, and their sum is the gradient of the shared output.
    - `cosine_qk`, `_qv`, `_kv`: ⟨a, b⟩ / (‖a‖ ‖b‖) of these, over all positions and dims. For roles that share a
      projection, 1 where both pull the same way, and below 0 where they pull against each other; for others it is a
      cosine of unrelated axes, about 0. None where widths differ, as of queries and keys with GQA: then the two reach
      no common vector.

    Of MLA and what else reads a latent, key and value are the latent, before its norm. A layer that reads the rows of
    another sends the gradient of its keys and values there, and they are noted as this layer's. Weights and metrics are
    what they are without it, bit by bit. Between the steps that are noted nothing is hooked.
    """

    def __init__(self, model: PreTrainedModel, every: int) -> None:
        self.found: dict[int, list[LayerGradients]] = {}
        self._every = every
        self._implementations = {model.config._attn_implementation or "eager", "eager"}
        layers = [block.attention for block in model.base_model.layers]
        self._layers = {layer: number for number, layer in enumerate(layers)}
        decoder = getattr(model.config, "architecture", None)
        self._owners = decoder.row_owners if decoder else range(len(layers))
        self._undo: list[Callable[[], None]] = []
        self._outputs: dict[nn.Module, Tensor] = {}
        self._sources: dict[int, dict[str, tuple[Tensor, slice]]] = {}
        self._tallies: dict[int, _Tally] = {}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to watch where the step is to be noted."""
        if (state.global_step + 1) % self._every == 0:
            self._watch()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The gradient is there: note it, and leave the model alone again."""
        if self._undo:
            self.found[state.global_step + 1] = [
                {"layer": number, **self._tallies[number].measures()} for number in sorted(self._tallies)
            ]
            self.close()

    def close(self) -> None:
        """Leave nothing hooked, also after an error."""
        while self._undo:
            self._undo.pop()()
        for held in (self._outputs, self._sources, self._tallies):
            held.clear()

    def _watch(self) -> None:
        self.close()
        for seam in {layer.projections for layer in self._layers}:
            for module, takes_input in {_source(seam, role)[:2] for role in ROLES}:
                self._keep(module, takes_input)
        for name in self._implementations:
            usual = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)
            ALL_ATTENTION_FUNCTIONS[name] = self._watched(usual)
            self._undo.append(partial(ALL_ATTENTION_FUNCTIONS.__delitem__, name))

    def _keep(self, kept: nn.Module, takes_input: bool) -> None:
        def of_input(module: nn.Module, given: tuple[Any, ...]) -> None:
            self._outputs[module] = given[0]

        def of_output(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
            self._outputs[module] = output

        hooked = kept.register_forward_pre_hook(of_input) if takes_input else kept.register_forward_hook(of_output)
        self._undo.append(hooked.remove)

    def _watched(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        """Attention that tells what its arguments get back."""

        def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Any:
            if module not in self._layers or not (torch.is_grad_enabled() and query.requires_grad):
                return usual(module, query, key, value, *others, **named)
            number = self._layers[module]
            sources = self._sources_of(number, module.projections)
            parts: dict[str, Tensor] = {}
            views = []
            for role, given in zip(ROLES, (query, key, value), strict=True):
                view = given.view_as(given)  # key and value may be one tensor: each needs a place of its own
                view.register_hook(self._follower(number, role, given, sources[role], parts))
                views.append(view)
            return usual(module, *views, *others, **named)

        return attend

    def _sources_of(self, number: int, seam: Projections) -> dict[str, tuple[Tensor, slice]]:
        """The outputs of this pass that the layer's queries, keys and values came from."""
        owner = self._owners[number]
        made: dict[str, tuple[Tensor, slice]] = {}
        for role in ROLES:
            if role != "query" and owner != number:
                made[role] = self._sources[owner][role]
            else:
                source = _source(seam, role)
                made[role] = (self._outputs[source.module], source.columns)
        self._sources[number] = made
        return made

    def _follower(
        self, number: int, role: str, given: Tensor, source: tuple[Tensor, slice], parts: dict[str, Tensor]
    ) -> Callable[[Tensor], None]:
        output, columns = source

        def follow(gradient: Tensor) -> None:
            # Nothing between here and the projection has run yet, for all of it waits for this gradient: the graph is
            # whole there, and is kept for the pass that is under way.
            (back,) = torch.autograd.grad(given, output, gradient, retain_graph=True)
            parts[role] = back[..., columns]
            if len(parts) == len(ROLES):
                self._tallies.setdefault(number, _Tally()).add(parts)
                parts.clear()

        return follow


class _Tally:
    """Sums over the passes of a step."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(ROLES, 0)
        self._squares = dict.fromkeys(ROLES, 0.0)
        self._products: dict[tuple[str, str], float] = dict.fromkeys(PAIRS, 0.0)

    def add(self, parts: dict[str, Tensor]) -> None:
        """What reached each role in one pass, [B, T, width]."""
        exact = {role: part.double() for role, part in parts.items()}
        for role, part in exact.items():
            self._counts[role] += part.numel()
            self._squares[role] += float(part.square().sum())
        for one, other in PAIRS:
            alike = exact[one].shape == exact[other].shape
            self._products[one, other] += float((exact[one] * exact[other]).sum()) if alike else math.nan

    def measures(self) -> LayerGradients:
        """See `GradientWatch`."""
        found = {f"variance_{LETTERS[role]}": self._squares[role] / self._counts[role] for role in ROLES}
        for one, other in PAIRS:
            lengths = math.sqrt(self._squares[one] * self._squares[other])
            cosine = self._products[one, other] / lengths if lengths else math.nan
            found[f"cosine_{LETTERS[one]}{LETTERS[other]}"] = cosine
        return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _source(seam: Projections, role: str) -> _Source:
    whole = slice(None)
    if isinstance(seam, LatentProjections):
        return _Source(seam.q_proj if role == "query" else seam.latent_proj, False, whole)
    owner = seam.variant.sharing.sources[role]
    if seam.fused:
        before = list(seam.outputs)[: list(seam.outputs).index(owner)]
        start = sum(seam.outputs[name] for name in before)
        return _Source(seam.get_submodule(FUSED_NAME), False, slice(start, start + seam.outputs[owner]))
    module = seam._modules.get(MATRIX_NAMES[owner])
    return _Source(seam, True, whole) if module is None else _Source(module, False, whole)
