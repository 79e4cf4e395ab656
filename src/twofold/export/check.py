"""Whether an export computes what the model computes: it is loaded in transformers, and the two are compared."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache

from twofold.models.decoder import TwofoldForCausalLM

TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""What logits may differ by, of the largest logit where that is above 1. Targets take norms in float32 at most, and in
half precision a weight that is scaled is rounded once more."""
COMPARED_TOKENS = 32
GREEDY_TOKENS = 16


@dataclass(frozen=True)
class Check:
    """What a comparison found. `cache_numbers` and `target_cache_numbers`: per token and layer, from the bytes that
    the two caches really hold after generation, each in its own engine; `engine_log` is what the target's engine itself
    says of its cache, where it says something.
    """

    engine: str
    tokens: int
    max_logit_difference: float
    largest_logit: float
    tolerance: float
    greedy_tokens: int
    greedy_equal: bool
    cache_numbers: float
    target_cache_numbers: float
    engine_log: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def check(model: TwofoldForCausalLM, folder: Path) -> Check:
    """Compare `model` with the export in `folder` on random tokens: logits, greedy text, caches.

    In float32 where the model is in half precision. Raises ValueError where logits differ by more than rounding
    explains.
    """
    tolerance, dtype = TOLERANCES[model.dtype], torch.promote_types(model.dtype, torch.float32)
    ours = in_dtype(model, dtype)
    theirs = _loaded(folder, dtype).to(model.device)
    ids_BT, new = compared_tokens(model)
    with torch.inference_mode():
        logits_BTV = ours(ids_BT, use_cache=False).logits
        difference = (logits_BTV - theirs(ids_BT, use_cache=False).logits).abs().max().item()
        largest = logits_BTV.abs().max().item()
        (own_ids, own_cache), (made_ids, made_cache) = (greedy(each, ids_BT[:1], new) for each in (ours, theirs))
    allowed = tolerance * max(1.0, largest)
    require_within(difference, allowed)
    return Check(
        engine="transformers",
        tokens=ids_BT.numel(),
        max_logit_difference=difference,
        largest_logit=largest,
        tolerance=allowed,
        greedy_tokens=new,
        greedy_equal=torch.equal(own_ids, made_ids),
        cache_numbers=own_cache.bytes_used / bytes_per_number(ours, own_cache),
        target_cache_numbers=storage_bytes(made_cache) / bytes_per_number(ours, made_cache),
    )


def storage_bytes(cache: Cache) -> int:
    """Bytes of the storages that a cache of transformers holds, each storage once."""
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())


def bytes_per_number(model: TwofoldForCausalLM, cache: Cache) -> int:
    """Bytes of one number in every row of one sequence: tokens × layers × bytes of a number of the model's."""
    return cache.get_seq_length() * model.config.num_hidden_layers * model.dtype.itemsize


def in_dtype(model: TwofoldForCausalLM, dtype: torch.dtype) -> TwofoldForCausalLM:
    """The model, or a copy of it where it has another dtype."""
    return model if model.dtype == dtype else deepcopy(model).to(dtype)


def require_within(difference: float, allowed: float) -> None:
    """Raise ValueError where logits differ by more than that, or by no number."""
    if not difference <= allowed:
        raise ValueError(
            f"the exported model's logits are off by {difference:.1e}, and {allowed:.1e} is what rounding explains: "
            "nothing was written. If the model is kept in half precision, export it in float32"
        )


def _loaded(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    made, report = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, dtype=dtype, output_loading_info=True
    )
    for fault in ("missing", "unexpected", "mismatched"):
        assert not report[f"{fault}_keys"], f"{fault} in the export: {report[f'{fault}_keys']}"
    return made.eval()


def compared_tokens(model: TwofoldForCausalLM) -> tuple[Tensor, int]:
    """Two sequences of random tokens, and how many are generated after the first."""
    sizes = model.config.architecture
    new = min(GREEDY_TOKENS, sizes.positions // 3)
    length = max(1, min(COMPARED_TOKENS, sizes.positions - new))
    drawn = torch.Generator().manual_seed(0)
    return torch.randint(sizes.vocab, (2, length), generator=drawn).to(model.device), new


def greedy(model: Any, ids_BT: Tensor, new: int) -> tuple[Tensor, Cache]:
    """All tokens after `new` greedy ones, whatever ends a text, and the cache that generation ended with."""
    made = model.generate(
        ids_BT,
        attention_mask=torch.ones_like(ids_BT),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        return_dict_in_generate=True,
    )
    return made.sequences, made.cache
