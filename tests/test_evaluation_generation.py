"""Generation: the tokens are the model's, the cache is the real one, and nothing else changes."""

import pytest
import torch

from small_models import formula_bytes, randomise
from tiny_study import tiny_model
from twofold.data.byte_tokens import END
from twofold.evaluation.generation import generate

PROMPT = [END, *b"def f(x):"]


@pytest.fixture
def model():
    """Random values everywhere, in float64: likeliest tokens are far enough apart to be the same either way."""
    made = tiny_model("K=V GQA-2").double()
    randomise(made)
    return made


def always(token: int):
    """A model that finds `token` likeliest after anything."""
    made = tiny_model(block="paper", rotary="full", tied=False)
    with torch.no_grad():
        made.model.norm.weight.zero_()
        made.model.norm.bias.fill_(1)
        made.lm_head.weight.zero_()
        made.lm_head.weight[token] = 1
    return made


def test_greedy_is_the_argmax_of_full_passes(model):
    made = generate(model, PROMPT, new_tokens=23, temperature=0, stop_at_end=False)
    ids = list(PROMPT)
    model.eval()
    with torch.no_grad():
        for _ in range(23):
            scores = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            scores[END] = -torch.inf  # no end before all tokens are there
            ids.append(int(scores.argmax()))
    assert made.token_ids == ids[len(PROMPT) :]
    assert len(set(made.token_ids)) > 5


@pytest.mark.parametrize("variant", ["QKV", "Q=K", "K=V", "Q=K=V", "MQA", "K=V MQA"])
@pytest.mark.parametrize("new_tokens", [1, 2, 31])
def test_the_cache_holds_all_but_the_last_token(variant, new_tokens):
    model = tiny_model(variant)
    made = generate(model, PROMPT, new_tokens=new_tokens, stop_at_end=False)
    assert len(made.token_ids) == new_tokens
    assert made.cached_tokens == len(PROMPT) + new_tokens - 1
    expected = formula_bytes(model, tokens=made.cached_tokens, batch=1)
    assert made.bytes_formula == made.bytes_used == expected <= made.bytes_reserved
    assert (made.decode_tokens_per_second > 0) == (new_tokens > 1)


def test_sampling_follows_from_its_seed_and_leaves_the_global_state(model):
    before = torch.random.get_rng_state()
    first = generate(model, PROMPT, new_tokens=17, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    assert generate(model, PROMPT, new_tokens=17, seed=3).token_ids == first.token_ids
    assert generate(model, PROMPT, new_tokens=17, seed=4).token_ids != first.token_ids


def test_sampling_draws_from_the_whole_distribution():
    model = always(0)
    with torch.no_grad():
        # All 257 tokens are about equally likely, so that 200 draws bring far more than any top 50.
        model.lm_head.weight.copy_(torch.linspace(0, 1e-3, 257)[:, None])
    drawn = generate(model, PROMPT, new_tokens=200, temperature=1.0, stop_at_end=False).token_ids
    assert len(set(drawn)) > 100
    assert END not in drawn


def test_a_low_temperature_draws_the_likeliest(model):
    greedy = generate(model, PROMPT, new_tokens=11, temperature=0).token_ids
    assert generate(model, PROMPT, new_tokens=11, temperature=1e-4).token_ids == greedy


def test_it_stops_at_the_end_unless_told_otherwise():
    model = always(END)
    stopped = generate(model, PROMPT, new_tokens=9)
    assert stopped.token_ids == [END]
    assert stopped.cached_tokens == len(PROMPT)
    assert stopped.bytes_used == formula_bytes(model, tokens=len(PROMPT), batch=1)
    going_on = generate(model, PROMPT, new_tokens=9, stop_at_end=False)
    assert len(going_on.token_ids) == 9
    assert END not in going_on.token_ids


def test_dropout_is_off_and_modes_come_back():
    model = tiny_model(dropout=0.5, rotary="none", positions=16).train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    greedy = [generate(model, PROMPT, new_tokens=5, temperature=0, seed=seed).token_ids for seed in (0, 1)]
    assert greedy[0] == greedy[1]
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(ValueError, match="position 16 is past the 16 learned positions"):
        generate(model, PROMPT, new_tokens=8, stop_at_end=False)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"temperature": -0.1}, r"the temperature must be at least 0, not -0\.1; 0 takes the likeliest"),
        ({"temperature": float("nan")}, "the temperature must be at least 0, not nan"),
        ({"new_tokens": 0}, "new_tokens must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(tiny_model(), **{"prompt_ids": PROMPT, "new_tokens": 3, **arguments})
