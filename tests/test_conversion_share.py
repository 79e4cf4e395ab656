"""Models that share: the same function where nothing is lost, the source as it was, and models like any other after."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from small_checkpoints import equal_tensors
from small_sharing import (
    DIMS,
    HEADS,
    KV_HEADS,
    LAYERS,
    LENGTH,
    ROWS,
    WIDTH,
    WINDOWS,
    layer_tensors,
    logits,
    seam,
    shared,
    source,
    stepped,
    windows,
)
from twofold.conversion.calibration import layer_by_layer, reads_of
from twofold.conversion.share import FITTED
from twofold.models.configuration import TwofoldConfig
from twofold.models.fusing import fuse
from twofold.models.load import load_model

WAYS = {
    "values": ("K=V on_read", {}),
    "latent": ("MLA on_read", {}),
    "latent per head": ("MLA on_read", {"method": "latent-head", "latent": 12, "weighed": False}),
    "latents of groups": ("MLA on_read", {"method": "latent-group", "groups": 3, "latent": 9}),
    "latent apart": ("MLA", {"rotary_dims": 6, "latent": 13}),
    "latent per head apart": ("K=V decoupled", {"rotary_dims": 4}),
    "merged": ("MQA", {}),
    "merged by mean": ("MQA", {"method": "mean"}),
    "some layers": ("MLA on_read", {"layers": (0, 2), "latent": 17}),
    "some layers apart": ("MLA", {"layers": (1,)}),
    "some layers per head apart": ("K=V decoupled", {"layers": (2,), "rotary_dims": 8}),
    "some layers of values": ("K=V on_read", {"layers": (1, 2)}),
    "some layers merged": ("MQA", {"layers": (1,)}),
    "sizes by loss": ("MLA on_read", {"cache": 0.5}),
    "sizes apart by loss": ("MLA", {"cache": 0.6, "rotary_dims": 4}),
}


@pytest.fixture(scope="module")
def model():
    return source()


@pytest.fixture(scope="module")
def made(model):
    return {name: shared(model, variant, **asked) for name, (variant, asked) in WAYS.items()}


@pytest.mark.parametrize("asked", [{}, {"weighed": False}, {"refit": False}])
def test_a_latent_as_wide_as_what_it_holds_is_the_same_model(asked):
    for given, widest in ((source(), WIDTH), (source(hidden_size=67), 2 * ROWS)):
        new, record = shared(given, "MLA on_read", latent=widest, **asked)
        torch.testing.assert_close(logits(new), logits(given), atol=1e-8, rtol=0)
        assert [one.output_lost for one in record.layers] == pytest.approx([0] * LAYERS, abs=1e-12)
        assert [one.lost for one in record.layers] == pytest.approx([0] * LAYERS, abs=1e-12)


@pytest.mark.parametrize(("method", "groups"), [("latent-head", 1), ("latent-group", 3), ("latent-group", 1)])
def test_latents_of_heads_as_wide_as_what_they_hold_are_the_same_model(method, groups):
    given = source(hidden_size=67)
    new, _ = shared(given, "MLA on_read", latent=2 * ROWS, method=method, groups=groups)
    torch.testing.assert_close(logits(new), logits(given), atol=1e-8, rtol=0)


def test_values_that_are_maps_of_keys_are_the_same_model():
    given = source()
    with torch.no_grad():
        for layer in range(LAYERS):
            own = seam(given, layer)
            map_GDD = torch.randn(KV_HEADS, DIMS, DIMS, dtype=torch.float64) / DIMS**0.5
            own.v_proj.weight.copy_((map_GDD @ own.k_proj.weight.unflatten(0, (KV_HEADS, DIMS))).flatten(0, 1))
    new, record = shared(given, "K=V on_read")
    torch.testing.assert_close(logits(new), logits(given), atol=1e-8, rtol=0)
    assert record.cache_share == 0.5
    assert shared(source(), "K=V on_read")[1].layers[0].lost_value > 0.1


@pytest.mark.parametrize("method", ["low-rank", "mean"])
@pytest.mark.parametrize(("heads", "kv_heads", "target"), [(6, 3, "MQA"), (8, 4, "GQA-2"), (6, 6, "GQA-3")])
def test_equal_heads_merge_to_the_same_model(method, heads, kv_heads, target):
    given = source(num_attention_heads=heads, num_key_value_heads=kv_heads)
    left = {"MQA": 1, "GQA-2": 2, "GQA-3": 3}[target]
    with torch.no_grad():
        for layer in range(LAYERS):
            for role in ("k_proj", "v_proj"):
                weight = getattr(seam(given, layer), role).weight
                first = weight.unflatten(0, (left, -1, DIMS))[:, :1]
                weight.copy_(first.expand(-1, kv_heads // left, -1, -1).flatten(0, 2))
    new, record = shared(given, target, method=method)
    torch.testing.assert_close(logits(new), logits(given), atol=1e-8, rtol=0)
    assert new.config.variant == target
    assert record.cache_share == pytest.approx(left / kv_heads)


def test_one_head_whose_pairs_all_turn_is_the_same_model():
    given = source(num_key_value_heads=1)
    new, record = shared(given, "MLA", latent=2 * DIMS, rotary_dims=DIMS)
    torch.testing.assert_close(logits(new), logits(given), atol=1e-8, rtol=0)
    assert record.rotary_pairs == tuple(range(DIMS // 2))
    assert new.config.variant == "MQA MLA"


@pytest.mark.parametrize("name", WAYS)
def test_layers_that_are_not_chosen_keep_every_bit(model, made, name):
    new, record = made[name]
    assert new is not model
    changed = {one.layer for one in record.layers}
    asked = WAYS[name][1]
    if "layers" in asked:
        assert changed == set(asked["layers"])
    for layer in range(LAYERS):
        own, other = layer_tensors(model, layer), layer_tensors(new, layer)
        outside = [key for key in own if "projections" not in key]
        assert all(torch.equal(own[key], other[key]) for key in outside)
        if layer not in changed:
            assert equal_tensors(own, other)
            assert new.config.architecture.at(layer).row_layout == model.config.architecture.row_layout
    for key in ("embed_tokens", "norm"):
        assert torch.equal(getattr(new.model, key).weight, getattr(model.model, key).weight)


def test_the_source_stays_as_it_is():
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        given = source().to(dtype).train()
        before, config = copy.deepcopy(given.state_dict()), given.config.to_dict()
        new, _ = shared(given, "MLA on_read", cache=0.6)
        assert equal_tensors(given.state_dict(), before)
        assert given.config.to_dict() == config
        assert given.training
        assert {one.dtype for one in new.parameters()} == {dtype}
        assert not new.training
        assert new.generation_config is not given.generation_config
        whole, _ = shared(given, "MLA on_read", latent=WIDTH)
        near = 1e-8 if dtype == torch.float64 else 0.1
        torch.testing.assert_close(logits(whole), logits(given.eval()), atol=near, rtol=0)


def test_a_fused_model_is_read_and_stays_fused(model, made):
    fused = fuse(model)
    before = copy.deepcopy(fused.state_dict())
    new, record = shared(fused, "MLA on_read")
    assert equal_tensors(fused.state_dict(), before)
    assert fused.config.fused_projections
    assert not new.config.fused_projections
    torch.testing.assert_close(logits(new), logits(made["latent"][0]))
    assert record.layers == made["latent"][1].layers


@pytest.mark.parametrize("name", WAYS)
def test_decoding_gives_what_a_full_pass_gives(made, name):
    new = made[name][0]
    ids = windows(2, 19, seed=8)
    torch.testing.assert_close(stepped(new, ids)[0], logits(new, ids))
    ids = ids[:, :4]
    found = new.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0)
    for _ in range(9):
        ids = torch.cat([ids, logits(new, ids)[:, -1:].argmax(-1)], 1)
    assert torch.equal(found, ids)


@pytest.mark.parametrize("name", WAYS)
def test_the_record_says_what_the_cache_really_keeps(model, made, name):
    new, record = made[name]
    for one, numbers in ((new, record.cache_numbers), (model, record.cache_numbers_before)):
        cache = one.model.new_cache(capacity=17)
        with torch.no_grad():
            one(windows(2, 17), cache=cache)
        assert cache.bytes_used == numbers * 2 * 17 * one.dtype.itemsize
    assert record.cache_share == record.cache_numbers / record.cache_numbers_before
    kept = 2 * ROWS * (LAYERS - len(record.layers))
    assert record.cache_numbers == kept + sum(one.cache_numbers for one in record.layers)
    assert record.variant == new.config.architecture.described
    assert record.tokens == WINDOWS * LENGTH


@pytest.mark.parametrize("name", WAYS)
def test_saved_and_loaded_it_is_the_same(made, name, tmp_path):
    new = made[name][0]
    new.save_pretrained(tmp_path)
    for again in (AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto"), load_model(tmp_path)):
        assert again.config.architecture == new.config.architecture
        assert equal_tensors(again.state_dict(), new.state_dict())
        torch.testing.assert_close(logits(again.eval()), logits(new), atol=1e-12, rtol=0)
    stored, own = (one.to_dict() for one in (TwofoldConfig.from_pretrained(tmp_path), new.config))
    assert {**stored, "_name_or_path": ""} == {**own, "_name_or_path": ""}


@pytest.mark.parametrize("name", ["values", "latent", "latent apart", "latent per head apart", "merged by mean"])
def test_what_is_fitted_again_is_never_worse_where_it_was_fitted(model, made, name):
    """Nor on the windows that were left, where it is undone; and `output_lost` is what it says, on those."""
    variant, asked = WAYS[name]
    with_refit, record = made[name]
    without, unfitted = shared(model, variant, refit=False, **asked)
    fitted = int(WINDOWS * FITTED)
    for given, one, other in zip(layer_by_layer(model, windows()), record.layers, unfitted.layers, strict=True):
        errors = []
        for new in (without, with_refit):
            read = reads_of(new, given.layer, given.x_BTM)
            error = (read @ seam(new, given.layer).o_proj.weight.detach().T - given.output_BTM).square()
            errors.append([float(error[:fitted].sum()), float(error[fitted:].sum())])
        whole = float(given.output_BTM[fitted:].square().sum())
        assert errors[1][0] <= errors[0][0]
        assert errors[1][1] <= errors[0][1]
        assert (errors[1][1] < errors[0][1]) == (errors[1][0] < errors[0][0])
        assert errors[0][1] / whole == pytest.approx(one.output_lost_unfitted) == pytest.approx(other.output_lost)
        assert errors[1][1] / whole == pytest.approx(one.output_lost)
        own = {key: value for key, value in layer_tensors(without, given.layer).items() if "o_proj" not in key}
        assert all(torch.equal(value, layer_tensors(with_refit, given.layer)[key]) for key, value in own.items())
    assert unfitted.refit is False
    assert record.refit is True


def test_refitting_helps_where_what_was_lost_follows_from_what_was_kept():
    """Heads of which each is twice the one before it: their mean is wrong by factors that the output can take up."""
    given = source(num_key_value_heads=3, num_hidden_layers=1)
    with torch.no_grad():
        weight = seam(given, 0).v_proj.weight.unflatten(0, (KV_HEADS, DIMS))
        weight.copy_(weight[:1] * torch.tensor([1.0, 2.0, 4.0])[:, None, None])
        seam(given, 0).q_proj.weight.zero_()
    _, record = shared(given, "MQA", method="mean", ids=windows(61, 37))
    (layer,) = record.layers
    assert layer.output_lost_unfitted > 0.01
    assert layer.output_lost < layer.output_lost_unfitted / 5


def test_windows_of_attention_stay_windows():
    given = source(sliding_window=7)
    new, _ = shared(given, "MLA on_read", latent=WIDTH)
    torch.testing.assert_close(logits(new), logits(given), atol=1e-8, rtol=0)
    assert new.config.sliding_window == 7


def test_progress_counts_the_layers_of_each_stage(model):
    from twofold.conversion.share import share
    from twofold.conversion.sharing_plan import Sharing
    from twofold.variants.notation import parse

    told = []
    share(model, Sharing(parse("MLA"), cache=0.7), windows(), lambda *what: told.append(what))
    stages = ("measuring", "weighing", "fitting")
    assert told == [(what, n, LAYERS) for what in stages for n in range(1, LAYERS + 1)]


def test_sizes_of_heads_are_those_that_were_given(made):
    weight = seam(made["latent"][0], 0)
    assert tuple(weight.k_up_proj.weight.shape) == (ROWS, weight.latent_proj.weight.shape[0])
    assert tuple(weight.q_proj.weight.shape) == (HEADS * DIMS, WIDTH)


@pytest.mark.parametrize(
    ("variant", "form", "asked"),
    [
        ("MLA", "deepseek", {"rotary_dims": 6, "latent": 19}),
        ("K=V decoupled", "deepseek", {"rotary_dims": 6}),
        ("K=V on_read", "llama", {}),
        ("MQA", "llama", {}),
    ],
)
def test_results_export_as_other_engines_models(variant, form, asked, tmp_path):
    """The export's own check compares logits, and writes nothing where they differ."""
    from twofold.export.export import export_model

    new, record = shared(source(head_dim=6, hidden_size=36), variant, **asked)
    exported = export_model(new.float(), form, tmp_path / "out")
    assert exported.as_dict()["check"] is not None
    assert record.variant == new.config.variant


def test_latents_that_are_turned_on_reading_do_not_export(made, tmp_path):
    from twofold.export.export import export_model

    for name in ("latent", "some layers apart"):
        with pytest.raises(ValueError, match=r"on_read|layers"):
            export_model(copy.deepcopy(made[name][0]).float(), "deepseek", tmp_path / "out")
