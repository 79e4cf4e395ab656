"""Generation for lm-evaluation-harness: a batch of prompts, stop strings, and the model's own cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from twofold.models.decoder import TwofoldForCausalLM

MOST_TOKENS = 256
"""Tokens to generate where a task does not say, as in the harness."""

ONLY_IN_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Settings:
    """`prompt` and `new` are the most tokens of each; `others` go to `generate()` as they are."""

    prompt: int
    new: int
    stops: tuple[str, ...]
    others: dict[str, Any]


def settings(asked: dict[str, Any], length: int) -> Settings:
    """What a task's `generation_kwargs` mean for a model that takes `length` tokens.

    Raises ValueError where nothing may be generated.
    """
    given = dict(normalize_gen_kwargs(asked, MOST_TOKENS))
    new, stops = given.pop("max_gen_toks"), tuple(stop for stop in given.pop("until") if stop)
    if new < 1 or length < 2:
        raise ValueError(f"max_gen_toks is {new} and the model takes {length} tokens: nothing can be generated")
    if new >= length:
        new = length // 2
    if not given["do_sample"]:
        given = {name: value for name, value in given.items() if name not in ONLY_IN_SAMPLING}
    return Settings(length - new, new, stops, given)


def generate_batch(
    model: TwofoldForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    end: int,
    prompts: Sequence[Sequence[int]],
    chosen: Settings,
) -> list[str]:
    """The texts that follow the prompts, each without the stop string or the `end` that ended it."""
    width = max(map(len, prompts))
    ids_BT = torch.tensor([[*[end] * (width - len(prompt)), *prompt] for prompt in prompts], device=model.device)
    mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    made_BT = model.generate(
        ids_BT,
        attention_mask=mask_BT,
        max_new_tokens=chosen.new,
        eos_token_id=end,
        pad_token_id=end,
        stopping_criteria=StoppingCriteriaList([AtText(tokenizer, chosen.stops, width)]),
        **chosen.others,
    )
    return [_text(tokenizer, end, row[width:].tolist(), chosen.stops) for row in made_BT]


class AtText(StoppingCriteria):
    """Ends each sequence once it holds one of the stop strings, wherever its tokens begin and end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], prompt: int) -> None:
        self._tokenizer, self._stops, self._prompt = tokenizer, stops, prompt
        # A token holds at least one byte, so a stop string that has just ended lies within as many tokens.
        self._reach = max((len(stop.encode()) for stop in stops), default=0)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which of the sequences [B, T] are done, bool [B]."""
        last = input_ids[:, self._prompt :][:, -self._reach :] if self._reach else input_ids[:, :0]
        texts = [_decoded(self._tokenizer, row) for row in last.tolist()]
        return torch.tensor([any(s in text for s in self._stops) for text in texts], device=input_ids.device)


def _text(tokenizer: PreTrainedTokenizerBase, end: int, ids: list[int], stops: Sequence[str]) -> str:
    kept = ids[: ids.index(end)] if end in ids else ids
    return postprocess_generated_text(_decoded(tokenizer, kept), list(stops), None)


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
