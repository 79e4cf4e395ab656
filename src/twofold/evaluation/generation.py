"""Generate from a prompt with the real cache, and read what it cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from twofold.cache.row_cache import RowCache
from twofold.cache.state_cache import StateCache
from twofold.evaluation.heldout import evaluation_mode
from twofold.models.decoder import TwofoldForCausalLM

LEAST_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class Generation:
    """What `generate` made. `token_ids` without the prompt; `cached_tokens` is one less than all tokens, since the
    last one was never read; bytes are of the real cache, `bytes_formula` what arithmetic promises for it.
    """

    token_ids: list[int]
    cached_tokens: int
    bytes_formula: int
    bytes_used: int
    bytes_reserved: int
    decode_tokens_per_second: float


class Clock(BaseStreamer):
    """Notes when each token came; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to do."""

    @property
    def decode_tokens_per_second(self) -> float:
        """Speed of the tokens after the first, which the prefill made; 0 where there is none."""
        steps = self.times[1:]
        return (len(steps) - 1) / (steps[-1] - steps[0]) if len(steps) > 1 else 0.0


def generate(
    model: TwofoldForCausalLM,
    prompt_ids: list[int],
    *,
    new_tokens: int,
    temperature: float = 0.8,
    seed: int = 0,
    stop_at_end: bool = True,
) -> Generation:
    """Continue `prompt_ids` by up to `new_tokens`, with the cache that a plain `generate()` ends up with.

    `temperature` 0 takes the likeliest token each time; above, tokens are drawn with `seed`, which leaves torch's own
    random state alone. Without `stop_at_end` exactly `new_tokens` come. Raises ValueError for an empty prompt.
    """
    if not prompt_ids:
        raise ValueError("the prompt is empty: give at least one token to continue from")
    if new_tokens < 1:
        raise ValueError(f"new_tokens must be at least 1, not {new_tokens}")
    if not temperature >= 0:  # NaN is not either
        raise ValueError(f"the temperature must be at least 0, not {temperature}; 0 takes the likeliest token")
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"the temperature {temperature} divides by too little: at least {LEAST_TEMPERATURE}, or 0")
    if not 0 <= seed < 2**63:
        raise ValueError(f"the seed must be at least 0 and below 2^63, not {seed}")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    ids = torch.tensor([prompt_ids], device=model.device)
    clock = Clock()
    with evaluation_mode(model), torch.random.fork_rng():
        torch.manual_seed(seed)
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=None if stop_at_end else new_tokens,
            streamer=clock,
            return_dict_in_generate=True,
            **sampling,
        )
    assert isinstance(made.cache, RowCache | StateCache)
    cached = made.cache.get_seq_length()
    return Generation(
        token_ids=made.sequences[0, len(prompt_ids) :].tolist(),
        cached_tokens=cached,
        bytes_formula=model.config.architecture.cache_bytes(cached, str(model.dtype).removeprefix("torch.")),
        bytes_used=made.cache.bytes_used,
        bytes_reserved=made.cache.bytes_reserved,
        decode_tokens_per_second=clock.decode_tokens_per_second,
    )
