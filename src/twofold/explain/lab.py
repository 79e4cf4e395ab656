"""Decoders as `lab.html` takes them: which it can show, their weights, and the bytes of their real cache."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from twofold.data.byte_tokens import END
from twofold.data.tokenizer import BYTES, load_tokenizer
from twofold.environment import environment
from twofold.explain.lab_record import (
    MOST_TOKENS,
    Lab,
    LabModel,
    LabRow,
    LabSizes,
    MeasuredCache,
    TensorPlace,
    dtype_bytes,
    sharing_rows,
)
from twofold.models.architecture import Architecture
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.load import MODEL_FOLDER, load_model
from twofold.variants.choices import Treatment
from twofold.variants.variant import Variant

MOST_MODELS = 4
MOST_WEIGHTS = 1_000_000
"""Of one model: its page reads every one for every sentence, and carries 5.3 bytes for each."""
HEAD = "lm_head.weight"


class LabRun(NamedTuple):
    """A run or model folder, and its held-out bits per byte where they are known."""

    folder: Path
    bits_per_byte: float | None = None


def lab_of(runs: Sequence[LabRun], sentence: str, command: str = "") -> Lab:
    """The lab of up to four decoders over bytes, in the order given.

    Raises ValueError for a folder without one, for more than four, for an empty sentence or one that is too long for a
    model, and for a model that the page does not compute, saying why.
    """
    if not 1 <= len(runs) <= MOST_MODELS:
        raise ValueError(f"a lab shows one to {MOST_MODELS} models, and {len(runs)} are given")
    loaded = [(run, _opened(run.folder)) for run in runs]
    variants = [str(model.config.architecture.variant) for _, model in loaded]
    models = []
    for (run, model), variant in zip(loaded, variants, strict=True):
        label = variant if variants.count(variant) == 1 else f"{variant}, {_name(run.folder)}"
        models.append(lab_model(model, sentence, label, str(run.folder), run.bits_per_byte))
    return Lab(
        models=tuple(models),
        sentence=sentence,
        most_tokens=MOST_TOKENS,
        end=END,
        sharings=sharing_rows(),
        dtypes=dtype_bytes(),
        command=command,
        environment=environment(),
    )


def lab_model(
    model: TwofoldForCausalLM, sentence: str, label: str = "", source: str = "", bits_per_byte: float | None = None
) -> LabModel:
    """One decoder with its weights. Raises ValueError for one that the page does not compute, and for a sentence that
    it cannot read.
    """
    sizes = model.config.architecture
    _require_shown(sizes, source or label, fused=model.config.fused_projections)
    tensors = {name: one for name, one in model.state_dict().items() if name != HEAD or not sizes.tied}
    numbers = sum(one.numel() for one in tensors.values())
    if numbers > MOST_WEIGHTS:
        raise ValueError(f"{source}: a lab's model has at most {MOST_WEIGHTS:,} weights, and this one {numbers:,}")
    _require_finite(tensors, source or label)
    row = sizes.row_layout
    return LabModel(
        label=label or str(sizes.variant),
        variant=str(sizes.variant),
        source=source,
        sources=sizes.variant.sharing.sources,
        sizes=LabSizes(
            **{name: getattr(sizes, name) for name in LabSizes.model_fields if name != "positions"},
            positions=sizes.positions if sizes.learned_positions else 0,
        ),
        row=LabRow(width=row.head_width, key=row.key, value=row.value),
        scale=row.key_dim**-sizes.scale_exponent,
        rotated_dims=sizes.rotated_dims,
        rotary_base=sizes.rotary_base,
        norm_epsilon=sizes.norm_epsilon,
        embedding_factor=sizes.width**0.5 if sizes.scaled_embeddings else 1.0,
        bits_per_byte=bits_per_byte,
        cache=_measured(model, sentence),
        tensors=tuple(TensorPlace(name=name, shape=tuple(one.shape)) for name, one in tensors.items()),
        weights=_base64(list(tensors.values())),
    )


def _opened(folder: Path) -> TwofoldForCausalLM:
    model = load_model(folder)
    place = folder / MODEL_FOLDER if (folder / MODEL_FOLDER).is_dir() else folder
    if (tokenizer := load_tokenizer(place)) is not BYTES:
        raise ValueError(
            f"{folder} reads the tokens of {tokenizer.name}, and a lab types bytes: give a model with data.tokenizer="
            "bytes"
        )
    return model


def _name(folder: Path) -> str:
    return folder.name if folder.name != MODEL_FOLDER else folder.parent.name


def _require_shown(sizes: Architecture, where: str, *, fused: bool) -> None:
    """Raise ValueError, naming what it is, for anything that the page's forward pass leaves out."""
    variant = sizes.variant
    plain = Variant(variant.sharing, variant.kv_heads)
    others = {
        f"the variant {variant}": variant != plain and variant.treatment is Treatment.DEROTATED,
        f"rotary by {variant.treatment.value}": variant.treatment is not Treatment.DEROTATED,
        "the paper's block": sizes.block != "modern",
        "a window": any(window is not None for window in sizes.windows) or bool(sizes.layer_pattern),
        "a soft cap": bool(sizes.softcap),
        "normalised queries": sizes.qk_norm,
        "sinks": sizes.sinks,
        "rows before the first position": bool(sizes.position_offset),
        "stacked projections": fused,
    }
    found = [name for name, present in others.items() if present]
    if found:
        raise ValueError(
            f"{where}: a lab does not show {found[0]}. It shows QKV, K=V, Q=K and Q=K=V, with GQA and MQA, learned or "
            "rotary positions, in the modern block"
        )


def _require_finite(tensors: dict[str, torch.Tensor], where: str) -> None:
    wrong = sum(int((~one.float().isfinite()).sum()) for one in tensors.values())
    if wrong:
        raise ValueError(
            f"{where}: {wrong:,} of its weights are NaN or infinite in float32, and a lab computes with them: give a "
            "run that did not diverge"
        )


def _measured(model: TwofoldForCausalLM, sentence: str) -> MeasuredCache:
    ids = list(sentence.encode())
    sizes = model.config.architecture
    most = min(MOST_TOKENS, sizes.positions) if sizes.learned_positions else MOST_TOKENS
    if not 2 <= len(ids) <= most:
        raise ValueError(f"the sentence has {len(ids)} bytes, and this lab reads 2 to {most}: give another --sentence")
    with torch.no_grad():
        cache = model(torch.tensor([ids], device=model.device), use_cache=True).cache
    return MeasuredCache(
        tokens=len(ids),
        dtype=str(model.dtype).removeprefix("torch."),
        bytes_used=cache.bytes_used,
        bytes_reserved=cache.bytes_reserved,
    )


def _base64(tensors: Sequence[torch.Tensor]) -> str:
    numbers = torch.cat([one.detach().float().cpu().flatten() for one in tensors])
    return base64.b64encode(numbers.numpy().astype("<f4").tobytes()).decode("ascii")
