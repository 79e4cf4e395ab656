"""What fold refuses, and what it says: models, caches, forms and places that it does not serve."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer

import twofold
from small_folded import far, gemma4, some_tokens, stepped
from small_models import small_model
from twofold.environment import package_version
from twofold.folding import gemma4 as gemma4_layers
from twofold.folding import versions
from twofold.folding.families import FAMILIES
from twofold.folding.fold import fold, folding_of, plan, unfold
from twofold.folding.forms import FORMS
from twofold.folding.rows import adopt


@pytest.fixture(scope="module")
def stock():
    return gemma4()


@pytest.fixture
def folded(stock):
    twin = copy.deepcopy(stock)
    fold(twin)
    return twin


def test_the_package_offers_what_folds_and_loads_it_late():
    assert twofold.fold is fold
    assert twofold.unfold is unfold
    assert set(twofold.__all__) - {"__version__"} <= {"fold", "unfold", "folded_cache", "folding_report"}
    script = "import sys, twofold; twofold.__version__; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'melt'"):
        _ = twofold.melt


def test_a_folded_model_is_not_folded_again(folded):
    with pytest.raises(ValueError, match="folded already"):
        fold(folded)
    twin = copy.deepcopy(folded)
    unfold(twin)
    assert folding_of(folded) is not None
    assert folding_of(twin) is None
    fold(twin, "value")


@pytest.mark.parametrize(
    ("form", "message"), [("melted", "unknown form 'melted'"), ("latent", "folds by form row or value, and not by")]
)
def test_unknown_forms_are_refused_before_anything_changes(stock, form, message):
    twin = copy.deepcopy(stock)
    with pytest.raises(ValueError, match=message):
        fold(twin, form)
    assert folding_of(twin) is None
    assert all(type(a) is type(b) for a, b in zip(stock.modules(), twin.modules(), strict=True))


def test_other_objects_and_own_models_are_refused():
    with pytest.raises(ValueError, match="a model of transformers, not a Linear"):
        fold(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="Twofold model stores what is shared once"):
        fold(small_model("K=V"))


def test_patched_and_sharded_models_are_refused_and_left_alone(stock):
    twin = copy.deepcopy(stock)
    attention = twin.model.layers[1].self_attn
    attention.forward = attention.forward
    with pytest.raises(ValueError, match="carries a forward pass of its own"):
        fold(twin)
    assert folding_of(twin) is None
    twin = copy.deepcopy(stock)
    twin._tp_size = 2
    with pytest.raises(ValueError, match="tensor parallelism over 2"):
        fold(twin)


def test_a_model_without_weights_is_planned_and_not_folded():
    with torch.device("meta"):
        model = gemma4_on_meta()
    assert [one.layer for one in plan(model).folds] == [1, 3]
    with pytest.raises(ValueError, match="no weights"):
        fold(model)


def gemma4_on_meta():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(gemma4().config)


def test_caches_that_keep_something_else_are_refused(stock, folded):
    ids_BT = some_tokens(1, 5)
    _, held = stepped(stock, ids_BT, [5])
    with pytest.raises(ValueError, match="holds 5 tokens of the model before it was folded"):
        folded(ids_BT, cache=held)
    _, other = stepped(fold_value(stock), ids_BT, [5])
    with pytest.raises(ValueError, match=r"rows of 44 numbers, and the model makes rows of 52"):
        folded(ids_BT, cache=other)

    class Kept(DynamicLayer):
        pass

    strange = DynamicCache()
    strange.layer_class_to_replicate = Kept
    with pytest.raises(ValueError, match="a Kept keeps something else"):
        folded(ids_BT, cache=strange)
    with pytest.raises(ValueError, match="and not in object"):
        folded(ids_BT, cache=object())


def fold_value(stock):
    twin = copy.deepcopy(stock)
    fold(twin, "value")
    return twin


def test_paged_attention_is_refused(folded):
    twin = copy.deepcopy(folded)
    twin.config._attn_implementation = "paged|sdpa"
    with pytest.raises(ValueError, match="no paged cache"):
        twin(some_tokens(1, 3))


def test_a_cache_by_its_old_name_and_by_place_is_adopted(folded):
    ids_BT = some_tokens(1, 6)
    by_name, by_place = DynamicCache(), StaticCache(config=folded.config, max_cache_len=9)
    with pytest.warns(FutureWarning, match="past_key_values"):
        folded(ids_BT, past_key_values=by_name)
    folded(ids_BT, None, None, by_place)
    assert [type(cache.layers[1]).__name__ for cache in (by_name, by_place)] == ["FoldedLayer"] * 2


def test_the_same_cache_serves_the_inner_models_as_well(folded):
    ids_BT = some_tokens(1, 6)
    cache = folded.model(ids_BT, use_cache=True).cache
    assert type(cache.layers[1]).__name__ == "FoldedLayer"
    assert folded(ids_BT, use_cache=False).cache is None


def test_every_family_says_its_forms():
    from importlib import import_module

    for _, module in FAMILIES.values():
        assert set(import_module(f"twofold.folding.{module}").FORMS) <= set(FORMS)


def test_an_unknown_version_is_checked_once_before_it_folds(stock, monkeypatch):
    monkeypatch.setattr(versions, "package_version", lambda name: "5.99.0")
    monkeypatch.setattr(versions, "_checked", set())
    with pytest.warns(UserWarning, match="tested with transformers 5.24.0, and this is 5.99.0"):
        fold(copy.deepcopy(stock))
    fold(copy.deepcopy(stock))  # warnings are errors: it does not come again
    monkeypatch.setattr(versions, "_checked", set())
    monkeypatch.setattr(gemma4_layers, "kept_after", spoiled(gemma4_layers.kept_after))
    with (
        pytest.warns(UserWarning, match="compared first"),
        pytest.raises(ValueError, match=r"with transformers 5\.99\.0 a folded gemma4 model gives other logits"),
    ):
        fold(copy.deepcopy(stock))


def spoiled(kept_after):
    return lambda module, cache, heads, *rest: kept_after(module, cache, heads * 1.01, *rest)


def test_this_version_is_among_those_tested():
    assert package_version("transformers") in versions.TESTED


def test_a_part_of_a_folded_model_is_not_unfolded_by_itself(stock, folded):
    with pytest.raises(ValueError, match="a part of the model that was folded"):
        unfold(folded.model)
    ids_BT = some_tokens(1, 5)
    assert far(stepped(stock, ids_BT, [5])[0], stepped(folded, ids_BT, [2, 3])[0]) < 1e-5
    unfold(folded)


def test_a_cache_of_rows_is_no_cache_of_keys_and_values(stock, folded):
    ids_BT = some_tokens(1, 5)
    _, cache = stepped(folded, ids_BT, [5])
    with pytest.raises(ValueError, match=r"rows of a folded model, 2 × 26 numbers .* and got 2 × 22"):
        stock(ids_BT, cache=cache)


def test_a_cache_of_the_first_layers_serves_those(folded):
    shorter = copy.deepcopy(folded.config)
    shorter.num_hidden_layers, shorter.layer_types = 2, shorter.layer_types[:2]
    cache = DynamicCache(config=shorter)
    adopt(cache, folding_of(folded).folds, {})
    assert [type(layer).__name__ for layer in cache.layers] == ["DynamicSlidingWindowLayer", "FoldedLayer"]
