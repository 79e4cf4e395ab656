"""Layers and sizes by a share of the cache: never more than is allowed, most of it used; and what is refused."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from small_models import small_model
from small_sharing import DIMS, HEADS, KV_HEADS, LAYERS, ROWS, WIDTH, seam, shared, source, windows
from twofold.conversion.choosing import chosen, weighed
from twofold.conversion.sharing_forms import Measured
from twofold.conversion.sharing_plan import METHODS, Sharing, form_of
from twofold.explain.sharing import Rows
from twofold.models.architecture import Architecture
from twofold.variants.notation import parse

EMPTY = Rows(torch.zeros(0, 0), torch.zeros(0, 0))
LARGE = {"layers": 7, "width": 60, "heads": 12, "head_dim": 8, "mlp": 13, "vocab": 31, "positions": 97}


def sizes_of(variant="GQA-4", **others):
    return Architecture(**{**LARGE, **others}, variant=variant)


def numbers(choice, form, sizes):
    """What the layers keep of a token by this choice."""
    whole = 2 * sizes.kv_heads * sizes.head_dim
    return sum(whole if latent is None else form.numbers(sizes, latent) for latent in choice.latents)


def foretold(form, sizes, seed=0):
    """Random falling losses for every layer, none at the widest latent, and weights of rotary pairs."""
    generator = torch.Generator().manual_seed(seed)
    count = 2 * sizes.kv_heads * sizes.head_dim // form.step + 1 if form.step else 1
    known, turning = [], []
    for _ in range(sizes.layers):
        losses = torch.rand(count, generator=generator, dtype=torch.float64).sort(descending=True).values
        if form.step:
            losses[-(-form.widest // form.step) :] = 0
        known.append(Measured(tuple(losses.tolist()), EMPTY))
        turning += [torch.rand(sizes.head_dim // 2, generator=generator)] if form.rotary_dims else []
    return known, turning


CASES = [
    ("MLA on_read", {}),
    ("MLA on_read", {"method": "latent-head"}),
    ("MLA on_read", {"method": "latent-group", "groups": 2}),
    ("MLA on_read", {"latent": 20}),
    ("MLA", {"rotary_dims": 2}),
    ("MLA", {"rotary_dims": 4, "latent": 15}),
    ("K=V on_read", {}),
    ("K=V decoupled", {"rotary_dims": 2}),
    ("GQA-2", {}),
    ("MQA", {"method": "mean"}),
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CASES), st.integers(1, 99), st.integers(0, 99))
def test_a_share_is_never_exceeded_and_mostly_used(case, percent, seed):
    """A layer more or a size more would exceed it, unless nothing is lost any more."""
    variant, fields = case
    sizes, asked = sizes_of(), Sharing(parse(variant), cache=percent / 100, **fields)
    form = form_of(asked, sizes)
    whole = 2 * sizes.kv_heads * sizes.head_dim
    allowed = percent * sizes.layers * whole // 100
    least = form.numbers(sizes, form.step if form.step and not asked.latent else form.latent)
    if sizes.layers * least > allowed:
        with pytest.raises(ValueError, match=f"keeps at least {least} of the 64 numbers"):
            chosen(*foretold(form, sizes, seed), form, asked, sizes)
        return
    choice = chosen(*foretold(form, sizes, seed), form, asked, sizes)
    kept = numbers(choice, form, sizes)
    assert kept <= allowed
    sized = form.step and not asked.latent
    of_use = min(allowed, sizes.layers * form.numbers(sizes, form.widest)) if sized else allowed
    assert kept > of_use - max(form.step if sized else whole - least, form.step + form.rotary_dims)
    assert any(latent is not None for latent in choice.latents)
    assert len(choice.pairs) == form.rotary_dims // 2


def test_layers_that_lose_least_are_taken():
    sizes, asked = sizes_of(), Sharing(parse("K=V on_read"), cache=0.8)
    form = form_of(asked, sizes)
    known = [Measured((loss,), EMPTY) for loss in (0.5, 0.1, 0.9, 0.3, 0.05, 0.7, 0.2)]
    assert chosen(known, [], form, asked, sizes).latents == (None, 0, None, None, 0, None, 0)


def test_a_given_latent_is_foretold_at_its_own_size():
    sizes, asked = sizes_of(), Sharing(parse("MLA on_read"), latent=3, cache=0.9)
    form = form_of(asked, sizes)
    known = [Measured((1.0, 0.9, 0.8, 0.7 - layer / 100, *(0.0,) * 61), EMPTY) for layer in range(7)]
    assert chosen(known, [], form, asked, sizes).latents == (None,) * 6 + (3,)


@pytest.mark.parametrize("how", [{"layers": (1, 3)}, {"cache": 0.875}])
def test_rotary_pairs_are_those_of_the_chosen_layers(how):
    """By hand, where only these are measured, and by what they lose."""
    sizes, asked = sizes_of(), Sharing(parse("K=V decoupled"), rotary_dims=4, spaced=False, **how)
    form = form_of(asked, sizes)
    weights = torch.tensor([[9.0, 9, 0, 0], [0, 0, 1, 3], [9, 9, 0, 0], [0, 2, 1, 0], *[[9.0, 9, 0, 0]] * 3])
    known = [Measured((0.1 if n in (1, 3) else 0.2,), EMPTY) for n in range(7)]
    by_hand = "layers" in how
    choice = chosen([] if by_hand else known, list(weights[[1, 3]] if by_hand else weights), form, asked, sizes)
    assert choice == ((None, 0, None, 0, None, None, None), (1, 3))


def test_losses_are_scaled_by_what_they_cost():
    known = [Measured((1.0, 0.5, 0.25), EMPTY, 1), Measured((1.0, 0.2, 0.1), EMPTY, 2), Measured((1.0, 0.0), EMPTY, 1)]
    made = weighed(known, [3.0, 7.0, 2.0])
    assert made[0].losses == pytest.approx((6, 3, 1.5))
    assert made[1].losses == pytest.approx((70, 14, 7))
    assert made[2].losses == pytest.approx((2 / 2e-4, 0))  # counts as 1e-3 of the mean, 0.2
    nothing = [Measured((1.0, 0.0), EMPTY, 1)] * 2
    assert weighed(nothing, [1.0, 2.0]) == nothing


BUDGETS = [
    ("MLA on_read", 0.5, {}),
    ("MLA on_read", 0.97, {"method": "latent-head"}),
    ("MLA on_read", 0.6, {"latent": 10}),
    ("MLA", 0.6, {"rotary_dims": 2}),
    ("K=V on_read", 0.6, {}),
    ("K=V decoupled", 0.8, {"rotary_dims": 2}),
    ("MQA", 0.6, {}),
]


@pytest.mark.parametrize(("variant", "share", "fields"), BUDGETS)
def test_models_keep_their_share(variant, share, fields):
    _, record = shared(source(), variant, cache=share, **fields)
    assert share - 0.34 < record.cache_share <= share


def test_a_narrow_model_wants_no_latent_wider_than_itself():
    """2·G·D exceeds the width by far: larger latents hold nothing more, and are not taken."""
    given_model = source(num_key_value_heads=6)
    _, record = shared(given_model, "MLA on_read", cache=0.9)
    assert all(one.cache_numbers <= WIDTH for one in record.layers)
    assert record.layers
    assert form_of(Sharing(parse("MLA on_read")), given_model.config.architecture).latent == WIDTH


def test_a_layer_that_the_model_needs_is_spared():
    """Two layers of three whose attention adds nothing are the ones that share."""
    model = source()
    with torch.no_grad():
        for layer in (0, 2):
            seam(model, layer).o_proj.weight.mul_(1e-4)
    for variant in ("K=V on_read", "MQA"):
        _, record = shared(model, variant, cache=0.67)
        assert [one.layer for one in record.layers] == [0, 2]
    _, record = shared(model, "MLA on_read", cache=0.4)  # at 0.5 each would have the width, and lose nothing
    kept = {one.layer: one.cache_numbers for one in record.layers}
    assert kept.get(1, 2 * ROWS) > max(kept[0], kept[2])


REFUSED = [
    ("K=V on_read", {"method": "latent-all"}, "is made by least-squares, and not by 'latent-all'"),
    ("MLA", {"method": "latent-head"}, "GQA-3 MLA is made by latent-all"),
    ("MQA", {"method": "median"}, "low-rank or mean, and not by 'median'"),
    ("K=V", {}, "no method makes K=V of another model: did you mean K=V on_read.? There are K=V on_read, MLA on_read"),
    ("Q=K=V on_read", {}, "no method makes"),
    ("CLA-2", {}, "no method makes"),
    ("MLA", {"weighed": False}, "plain .weighed false. says nothing to GQA-3 MLA by latent-all: leave it out"),
    ("MQA", {"weighed": False}, "plain .weighed false. says nothing to MQA"),
    ("MLA on_read", {"spaced": False}, "any-pairs .spaced false. says nothing"),
    ("GQA-2", {}, "3 key/value heads merge to 1; they do not to 2"),
    ("GQA-3", {}, "they do not to 3"),
    ("GQA-6", {}, "they do not to 6"),
    ("QKV", {}, "they do not to 6"),
    (
        "MQA MLA on_read",
        {},
        r"1 key/value heads and the model 3: leave the heads out, or merge them first \(--to GQA-1",
    ),
    ("K=V GQA-2 on_read", {}, "2 key/value heads and the model 3: leave the heads out$"),
    ("K=V on_read", {"latent": 7}, "latent says nothing to K=V GQA-3 on_read"),
    ("MQA", {"rotary_dims": 4}, "rotary_dims says nothing to MQA by low-rank"),
    ("MLA on_read", {"rotary_dims": 4}, "rotary_dims says nothing"),
    ("MLA on_read", {"groups": 3}, "groups says nothing to GQA-3 MLA on_read by latent-all"),
    ("MLA on_read", {"method": "latent-group", "groups": 2}, "3 key/value heads do not fall into 2 equal groups"),
    ("MLA on_read", {"method": "latent-group", "groups": 0}, "do not fall into 0"),
    ("MLA on_read", {"method": "latent-head", "latent": 10}, "latent of 10 dims in 3 parts does not go: .* to 60"),
    (
        "MLA on_read",
        {"latent": WIDTH + 1},
        "latent of 30 dims in 1 parts does not go: give a multiple of 1 from 1 to 29",
    ),
    ("MLA on_read", {"latent": -1}, "latent of -1 dims"),
    ("MLA", {"rotary_dims": 5}, "5 rotary_dims do not go: pairs turn"),
    ("MLA", {"rotary_dims": 12}, "an even number from 2 to the 10 of a head"),
    ("MLA", {"rotary_dims": -2}, "-2 rotary_dims"),
    ("MLA", {"layers": (0, 3)}, r"different numbers from 0 to 2, not \[0, 3\]"),
    ("MLA", {"layers": (-1,)}, "different numbers from 0 to 2"),
    ("MLA", {"layers": (1, 1)}, "different numbers"),
    ("MLA", {"layers": ()}, "different numbers"),
    ("MLA", {"layers": (1,), "cache": 0.5}, "both given: the share chooses the layers"),
    ("MLA", {"cache": 0.0}, "between 0 and 1, and is not 0.0"),
    ("MLA", {"cache": 1.0}, "is not 1.0"),
    ("MLA", {"cache": float("nan")}, "is not nan"),
    (
        "MLA",
        {"cache": 0.05},
        "keeps at least 6 of the 60 numbers of a layer, 10.0%, and 5.0% of the cache is asked for",
    ),
    ("K=V on_read", {"cache": 0.49}, "at least 30 of the 60 numbers of a layer, 50.0%, and 49.0%"),
    ("MQA", {"cache": 0.3}, "at least 20 of the 60"),
    ("K=V decoupled", {"cache": 0.5, "rotary_dims": 4}, "at least 34 of the 60"),
]


@pytest.mark.parametrize(("variant", "fields", "words"), REFUSED)
def test_what_does_not_go_is_refused_before_anything_is_read(variant, fields, words, monkeypatch):
    from twofold.conversion import share

    monkeypatch.setattr(share, "layer_by_layer", None)
    with pytest.raises(ValueError, match=words):
        shared(source(), variant, **fields)


MODELS = {
    "has layers of K=V, which do not keep": lambda: small_model("K=V"),
    "has layers of QKV rank-3": lambda: small_model("rank-3"),
    "has layers of 1 × K=V, 1 × QKV": lambda: small_model(layer_variants=["K=V", "QKV"]),
    "has sinks": lambda: small_model(sinks=True),
    "has rotary partial": lambda: small_model(rotary="partial", rotary_dims=4),
    "scales scores by d^−1": lambda: small_model(scale_exponent=1.0),
}


@pytest.mark.parametrize("words", MODELS)
def test_models_without_plain_keys_and_values_are_refused(words):
    with pytest.raises(ValueError, match=re.escape(words)) as told:
        shared(MODELS[words](), "MLA")
    assert "sharing is for QKV, GQA-g and MQA" in str(told.value)


def test_models_that_share_already_do_not_share_again():
    for variant, layers in (("MLA on_read", (0,)), ("K=V on_read", None), ("K=V decoupled", None)):
        once, _ = shared(source(), variant, layers=layers)
        with pytest.raises(ValueError, match="do not keep plain keys and values"):
            shared(once, "MLA on_read")


def test_merged_heads_may_be_merged_and_shared_on():
    """GQA is of the kind that is taken: `--to GQA-g` first, then a latent."""
    merged, _ = shared(source(num_key_value_heads=6), "GQA-3")
    again, record = shared(merged, "GQA-3 MLA on_read")
    assert again.config.variant == "GQA-3 MLA on_read"
    assert record.cache_numbers_before == LAYERS * 2 * KV_HEADS * DIMS


@pytest.mark.parametrize("rotary", ["none", "partial"])
@pytest.mark.parametrize(
    ("variant", "method"), [("K=V on_read", ""), ("GQA-2", "mean"), ("MLA on_read", ""), ("GQA-2", "")]
)
def test_methods_that_ask_for_no_rotary_take_any(rotary, variant, method):
    if rotary == "partial" and (variant, method) in (("MLA on_read", ""), ("GQA-2", "")):
        with pytest.raises(ValueError, match="is made of one over all dims of a head"):
            shared(small_model(rotary=rotary), variant)
        return
    given_model = small_model(rotary=rotary)
    _, record = shared(given_model, variant, ids=windows(9, 37) % 29, method=method)
    assert record.cache_numbers < record.cache_numbers_before


def test_texts_that_do_not_fit_are_refused():
    for ids, words in (
        (windows(1, 97), "1 windows of 97 tokens are too few: give two at least"),
        (windows(4, 20), "4 windows of 20 tokens are too few: .* more than 80 tokens, to fit the 60 numbers"),
        (windows() + 40, "and the model those below 61: give the model's own tokenizer"),
        (windows() - 40, "the text has tokens -40"),
    ):
        with pytest.raises(ValueError, match=words):
            shared(source(), "MLA on_read", ids=ids)


def test_damaged_weights_are_refused():
    model = source()
    with torch.no_grad():
        seam(model, 1).q_proj.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="layer 1 of the model gives numbers that are not finite"):
        shared(model, "MLA on_read")


def test_every_method_of_the_table_makes_a_model():
    for target, methods in METHODS.items():
        for method in methods:
            new, record = shared(source(), "MQA" if target == "GQA-g" else target, method=method)
            assert record.method == method
            assert new.config.architecture.heads == HEADS
