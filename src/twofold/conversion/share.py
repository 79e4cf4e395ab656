"""Make a decoder whose layers keep keys and values of their own into one that shares them, fitted to a text.

One pass over the text makes each chosen layer anew from its inputs, and fits its output's matrix to what the layer gave
before. Where layers, sizes or rotary pairs are to be chosen by what they lose, a pass before it measures that. No
gradient is taken.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from twofold.conversion.affine import map_of, put_map
from twofold.conversion.calibration import Given, attention_of, layer_by_layer, layer_of, reads_of
from twofold.conversion.choosing import Choice, by_hand, chosen, require_choice, weighed
from twofold.conversion.layer_maps import Shared
from twofold.conversion.refit import refit_affine, refit_output
from twofold.conversion.sensitivity import sensitivities
from twofold.conversion.sharing_forms import Form, Measured, turning_of
from twofold.conversion.sharing_plan import Sharing, form_of
from twofold.models.architecture import Architecture
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fusing import separate

FITTED = 0.75
"""The share of a text's windows that outputs are fitted on; errors are measured on the others."""
KEPT = ("q_norm.weight", "k_norm.weight")
"""What an attention that is made anew has from the model's own."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LayerRecord:
    """What became of one layer.

    `lost` is E‖[k; v] − [k'; v']‖² / E‖[k; v]‖² on the text, before norms and rotary, and of keys and of values alone.
    `output_lost` is E‖o − o'‖² / E‖o‖² of the attention's output for its former inputs, on windows that nothing was
    fitted on, and `output_lost_unfitted` the same before the output's matrix was fitted again. They also decide whether
    that fit is kept: `output_lost` is never the larger.
    """

    layer: int
    variant: str
    cache_numbers: int
    lost: float
    lost_key: float
    lost_value: float
    output_lost_unfitted: float
    output_lost: float


@dataclass(frozen=True)
class SharingRecord:
    """A conversion as its record has it. Numbers are those that the cache keeps per token, over all layers."""

    to: str
    method: str
    variant: str
    tokens: int
    refit: bool
    rotary_pairs: tuple[int, ...]
    cache_numbers_before: int
    cache_numbers: int
    cache_share: float
    layers: tuple[LayerRecord, ...]

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def share(
    model: TwofoldForCausalLM, asked: Sharing, ids_BT: Tensor, progress: Progress | None = None
) -> tuple[TwofoldForCausalLM, SharingRecord]:
    """A new model that shares as `asked`, fitted to token ids [N, T], N windows of text, on the CPU.

    `model` stays as it is, and so do layers that are not chosen. The new model has its dtype, and a matrix for each
    role also where the model's are fused. `progress` is called with what is done, layers done, and layers in all.

    Raises ValueError for models and forms that do not go together, and for a text too short to fit on, or of other
    tokens than the model's.
    """
    sizes = model.config.architecture
    form = form_of(asked, sizes)
    require_choice(form, asked, sizes)
    _require_text(ids_BT, sizes)
    source = _to_read(model)
    choice = _choice(source, form, asked, ids_BT, progress)
    made = _unfitted(source, form, choice)
    records = []
    for given in _told("fitting", progress, layer_by_layer(source, ids_BT), sizes.layers):
        latent = choice.latents[given.layer]
        if latent is None:
            continue
        shared = form.make(*layer_of(source, given), latent, choice.pairs)
        _put(made, given.layer, shared)
        losses = _fit(made, given, refit=asked.refit)
        records.append(_record(made, given.layer, shared, losses))
    made.generation_config = copy.deepcopy(model.generation_config)
    made.config._name_or_path = made.name_or_path = model.name_or_path
    return made.to(model.dtype).eval(), _summary(asked, form, sizes, made, ids_BT, choice, records)


def _to_read(model: TwofoldForCausalLM) -> TwofoldForCausalLM:
    """The model with a matrix for each role, in float32 or better; another object where it is not so."""
    source = separate(model) if model.config.fused_projections else model
    half = source.dtype in (torch.bfloat16, torch.float16)
    return copy.deepcopy(source).float() if half else source


def _choice(
    source: TwofoldForCausalLM, form: Form, asked: Sharing, ids_BT: Tensor, progress: Progress | None
) -> Choice:
    """The layers, sizes and rotary pairs, measured where something is to be chosen."""
    sizes = source.config.architecture
    if asked.cache is None and not form.rotary_dims:
        return chosen([], [], form, asked, sizes)
    wanted = by_hand(asked, sizes.layers)
    known: list[Measured] = []
    turning: list[Tensor] = []
    for given in _told("measuring", progress, layer_by_layer(source, ids_BT), sizes.layers):
        if given.layer in wanted:
            layer = layer_of(source, given)
            if asked.cache is not None:
                known.append(form.measured(*layer))
            if form.rotary_dims:
                turning.append(turning_of(*layer))
    if known:
        known = weighed(known, sensitivities(source, [one.remade for one in known], ids_BT, progress))
    return chosen(known, turning, form, asked, sizes)


def _unfitted(model: TwofoldForCausalLM, form: Form, choice: Choice) -> TwofoldForCausalLM:
    """A model of the new configuration with the weights of the old one, but for those that are yet to be made."""
    sizes = _sizes(model.config.architecture, form, choice.latents, choice.pairs)
    special = {name: getattr(model.config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = TwofoldConfig.from_architecture(sizes, **special)
    config._attn_implementation = model.config._attn_implementation
    made = TwofoldForCausalLM(config).to(model.dtype).eval()
    own, state = made.state_dict(), model.state_dict()
    kept = {name: state[name] if name in state and state[name].shape == one.shape else one for name, one in own.items()}
    made.load_state_dict(kept)
    return made


def _sizes(sizes: Architecture, form: Form, latents: Sequence[int | None], pairs: tuple[int, ...]) -> Architecture:
    variants = tuple(sizes.variant if latent is None else form.variant for latent in latents)
    dims = tuple(latent or 0 for latent in latents)
    turned: dict[str, Any] = {"rotary": "", "rotary_pairs": pairs, "rotary_dims": 0} if pairs else {}
    named: dict[str, Any] = {"latent_norm": not form.leaves_norm_out, **turned}
    if len(set(variants)) == 1 and len(set(dims)) == 1:
        return replace(sizes, variant=form.variant, latent_dims=dims[0], **named)
    latent_dims = dims if any(dims) else ()
    return replace(sizes, layer_variants=variants, layer_latents=latent_dims, **named)


def _put(model: TwofoldForCausalLM, layer: int, shared: Shared) -> None:
    """All of a layer's attention but norms and a bias of its output, which it has from the model."""
    seam = attention_of(model, layer).projections
    own = {name for name, _ in seam.named_parameters() if not name.endswith(".bias") and name not in KEPT}
    assert own == set(shared.tensors), (sorted(own), sorted(shared.tensors))
    for name, matrix in seam.matrices.items():
        tensor = shared.tensors[f"{name}.weight"]
        assert tensor.shape[1] == matrix.inputs + (matrix.bias and name != "o_proj"), (name, tensor.shape)
        put_map(seam.get_submodule(name), tensor)


@torch.no_grad()
def _fit(model: TwofoldForCausalLM, given: Given, *, refit: bool) -> tuple[float, float]:
    """Fit the output's matrix; what is lost of the output before and after, on windows that were not fitted on.

    What the heads read does not depend on that matrix: it is made once. A bias of the output is fitted along with it.
    A fit that loses more on those windows is not kept: there was too little text for it.
    """
    output: torch.nn.Linear = attention_of(model, given.layer).projections.o_proj
    reads = reads_of(model, given.layer, given.x_BTM)
    count = max(1, int(len(reads) * FITTED))
    held = reads[count:].flatten(0, 1), given.output_BTM[count:].flatten(0, 1)
    unfitted = _output_lost(output, *held)
    if not refit:
        return unfitted, unfitted
    fit, before = (refit_output if output.bias is None else refit_affine), map_of(output).clone()
    put_map(output, fit(reads[:count].flatten(0, 1), given.output_BTM[:count].flatten(0, 1), output.weight))
    if (fitted := _output_lost(output, *held)) <= unfitted:
        return unfitted, fitted
    put_map(output, before)
    return unfitted, unfitted


def _output_lost(output: torch.nn.Linear, read_NR: Tensor, output_NM: Tensor) -> float:
    missed, whole = float((output(read_NR) - output_NM).square().sum()), float(output_NM.square().sum())
    return missed / whole if whole else 0.0


def _record(model: TwofoldForCausalLM, layer: int, shared: Shared, losses: tuple[float, float]) -> LayerRecord:
    one = model.config.architecture.at(layer)
    numbers = one.row_layout.numbers(one.kv_heads)
    return LayerRecord(
        layer, str(one.variant), numbers, shared.lost, shared.lost_key, shared.lost_value, losses[0], losses[1]
    )


def _summary(
    asked: Sharing,
    form: Form,
    before: Architecture,
    made: TwofoldForCausalLM,
    ids_BT: Tensor,
    choice: Choice,
    records: list[LayerRecord],
) -> SharingRecord:
    after = made.config.architecture
    kept, kept_before = _cached_numbers(after), _cached_numbers(before)
    return SharingRecord(
        to=str(form.variant),
        method=form.method,
        variant=after.described,
        tokens=ids_BT.numel(),
        refit=asked.refit,
        rotary_pairs=choice.pairs,
        cache_numbers_before=kept_before,
        cache_numbers=kept,
        cache_share=kept / kept_before,
        layers=tuple(records),
    )


def _cached_numbers(sizes: Architecture) -> int:
    return sum(layout.numbers(heads) for layout, heads, _ in zip(*sizes.cached_rows, strict=True))


def _told(what: str, progress: Progress | None, items: Iterator[Given], total: int) -> Iterator[Given]:
    for number, item in enumerate(items, start=1):
        yield item
        if progress is not None:
            progress(what, number, total)


def _require_text(ids_BT: Tensor, sizes: Architecture) -> None:
    windows, length = ids_BT.shape
    least = 2 * sizes.kv_heads * sizes.head_dim
    if windows < 2 or ids_BT.numel() * FITTED <= least:
        raise ValueError(
            f"{windows} windows of {length} tokens are too few: give two at least, one to see how well it went, and "
            f"more than {math.ceil(least / FITTED):,} tokens, to fit the {least:,} numbers of a layer"
        )
    if int(ids_BT.max()) >= sizes.vocab or int(ids_BT.min()) < 0:
        raise ValueError(
            f"the text has tokens {int(ids_BT.min())} to {int(ids_BT.max())}, and the model those below {sizes.vocab}: "
            "give the model's own tokenizer"
        )
