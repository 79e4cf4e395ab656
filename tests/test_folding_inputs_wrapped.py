"""Projections that are more than their matrix: refused when a model is folded, called when they became so later."""

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from small_inputs import FAMILIES, gpt2, inputs, opt, random_ids
from twofold.folding.fold import fold
from twofold.kernels.linear import quantise_linear, use_decode_linear


class Adapter(nn.Module):
    """A projection and what low-rank matrices add to it."""

    def __init__(self, base):
        super().__init__()
        self.base, self.weight = base, base.weight
        width = base.weight.shape[0]
        made = torch.Generator().manual_seed(4)
        self.down = nn.Parameter(torch.randn(width, 2, generator=made, dtype=base.weight.dtype))
        self.up = nn.Parameter(torch.randn(2, base.bias.shape[0], generator=made, dtype=base.weight.dtype))

    def forward(self, x):
        return self.base(x) + x @ self.down @ self.up


class Wrapped(nn.Module):
    """A projection out of sight."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner


class Coded(torch.Tensor):
    """A weight that is no plain tensor, as torchao's are."""


def attention(model):
    found = [m for m in model.modules() if "Attention" in type(m).__name__ and getattr(m, "is_causal", False)]
    return found[-1]


def projections(family):
    return ("c_attn",) if family == "gpt2" else ("k_proj", "v_proj")


def wrap(layer, name):
    kinds = {"k_proj": Adapter, "v_proj": Adapter, "c_attn": Adapter}
    own = getattr(layer, name)
    if own.bias is None:  # Whisper's keys
        own.bias = nn.Parameter(torch.zeros(own.weight.shape[0], dtype=own.weight.dtype))
    setattr(layer, name, kinds[name](own))


@pytest.mark.parametrize("family", FAMILIES)
def test_wrapped_projections_are_refused(family):
    for name in projections(family):
        model = FAMILIES[family]()
        wrap(attention(model), name)
        with pytest.raises(ValueError, match=rf"its {name} is a Adapter .* merge the adapter"):
            fold(model)
        assert not [m for m in model.modules() if "Folded" in type(m).__name__]


def test_quantised_projections_are_refused():
    model = opt(torch.float32)
    attention(model).v_proj = quantise_linear(attention(model).v_proj)
    with pytest.raises(ValueError, match=r"its v_proj is a Int8Linear of Parameter, and not a plain Linear"):
        fold(model)
    model = opt(torch.float32)
    attention(model).k_proj = Wrapped(attention(model).k_proj)
    with pytest.raises(ValueError, match=r"its k_proj is a Wrapped of NoneType"):
        fold(model)
    model = gpt2()
    own = attention(model).c_attn
    own.weight = nn.Parameter(own.weight.detach().as_subclass(Coded))
    with pytest.raises(ValueError, match=r"its c_attn is a Conv1D of Coded"):
        fold(model)


def steps(model, family, ids):
    cache, got = None, []
    for start, stop in ((0, 7), (7, 8), (8, 11), (11, ids.shape[1])):
        out = model(**inputs(family, ids[:, start:stop]), cache=cache)
        cache = out.cache
        got.append(out.logits)
    return torch.cat(got, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_that_came_later_count(family):
    """In every step, over the tokens that were cached before them too."""
    model, other, ids = FAMILIES[family](), FAMILIES[family](), random_ids(2, 13)
    with torch.no_grad():
        plain = steps(model, family, ids)
        fold(model)
        for changed in (model, other):
            for name in projections(family):
                wrap(attention(changed), name)
        expected = steps(other, family, ids)
        torch.testing.assert_close(steps(model, family, ids), expected, atol=1e-10, rtol=0)
    assert float((expected - plain).abs().max()) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_hooks_of_projections_are_called(family):
    model, ids = FAMILIES[family](), random_ids(2, 13)
    hook = getattr(attention(model), projections(family)[-1]).register_forward_hook(lambda m, given, made: made * 1.5)
    with torch.no_grad():
        expected = steps(model, family, ids)
        fold(model)
        torch.testing.assert_close(steps(model, family, ids), expected, atol=1e-10, rtol=0)
        hook.remove()
        assert float((steps(model, family, ids) - expected).abs().max()) > 1e-3


def test_linear_layers_for_decoding_are_plain():
    model, ids = opt(torch.float32), random_ids(1, 13)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        use_decode_linear(model)
        fold(model)
        torch.testing.assert_close(steps(model, "opt", ids), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_forms_and_filled_caches_are_refused(family):
    model, ids = FAMILIES[family](), random_ids(1, 5)
    with pytest.raises(ValueError, match="folds by form input, and not by row"):
        fold(model, "row")
    cache = model(**inputs(family, ids), use_cache=True).cache
    fold(model)
    with pytest.raises(ValueError, match="holds 5 tokens of the model before it was folded"):
        model(**inputs(family, ids), cache=cache)


def test_a_cache_of_other_rows_is_refused():
    narrow, wide, cache = gpt2(n_embd=24), gpt2(), DynamicCache()
    fold(narrow)
    fold(wide)
    narrow(input_ids=random_ids(1, 5), cache=cache)
    with pytest.raises(ValueError, match="holds rows of 24 numbers, and the model makes rows of 48"):
        wide(input_ids=random_ids(1, 5), cache=cache)
