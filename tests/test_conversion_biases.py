"""Models with biases on queries, keys and values, and models with learned positions, are made to share as others."""

import copy
import json

import pytest
import torch

from command_line import run
from small_checkpoints import checkpoint
from small_models import small_model
from small_sharing import (
    WINDOWS,
    converted,
    ids,
    layer_tensors,
    logits,
    seam,
    seen,
    shared,
    source,
    stepped,
    windows,
)
from tiny_study import write_texts
from twofold.conversion.affine import map_of, put_map
from twofold.conversion.calibration import layer_by_layer, layer_of, reads_of
from twofold.conversion.convert import convert_in
from twofold.conversion.importance import importance
from twofold.conversion.rotary_importance import Text, mean_turns
from twofold.conversion.sensitivity import sensitivities
from twofold.conversion.share import FITTED
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer
from twofold.explain.sharing import Rows
from twofold.models.decoder import TwofoldForCausalLM


def family(name, **others):
    model = checkpoint(name, **others).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    return convert_in(model).eval()


MODELS = {
    "qwen2": lambda: family("qwen2"),
    "qwen2, wide rows": lambda: family("qwen2", num_key_value_heads=6),
    "gpt2": lambda: family("gpt2"),
    "opt": lambda: family("opt"),
    "rotary and all biases": lambda: small_model("GQA-2", "paper", "full"),
}
"""Biases of queries, keys and values alone and of everything, with rotary and learned positions."""
LEARNED = ("gpt2", "opt")


def drawn(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MODELS)
def test_the_widest_latent_is_the_same_model(name):
    model = MODELS[name]()
    sizes = model.config.architecture
    widest = min(2 * sizes.kv_heads * sizes.head_dim, sizes.width + 1)
    for asked in ({}, {"weighed": False}, {"refit": False}):
        new, record = converted(model, "MLA on_read", latent=widest, **asked)
        torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)
        assert [one.lost for one in record.layers] == pytest.approx([0] * sizes.layers, abs=1e-12)
    own = seam(new, 0)
    assert all(bool(getattr(own, part).bias.abs().min() > 0) for part in ("q_proj", "latent_proj"))
    assert own.k_up_proj.bias is own.v_up_proj.bias is None
    assert (own.o_proj.bias is None) == (not sizes.biases)
    with pytest.raises(ValueError, match=f"to {widest}, where nothing is lost"):
        converted(model, "MLA on_read", latent=widest + 1)


@pytest.mark.parametrize("name", LEARNED)
def test_models_with_layer_norm_halve_their_cache_and_lose_nothing(name):
    model = MODELS[name]()
    new, record = converted(model, "MLA on_read")
    assert record.cache_share == 0.5
    torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)


def remade(seam, x_NM, own):
    """Keys and values by the new layer's modules, before rotary; `own` [N, G·D] are the keys and values that were."""
    if hasattr(seam, "latent_proj"):
        latent = seam.latent_proj(x_NM)
        return seam.k_up_proj(latent), seam.v_up_proj(latent)
    key, many = seam.k_proj(x_NM), own[0].shape[1] // seam.k_proj.out_features
    if hasattr(seam, "v_proj"):
        return key.repeat(1, many), seam.v_proj(x_NM).repeat(1, many)
    heads = [one.unflatten(1, (seam.kv_heads, -1)).unbind(1) for one in (key, own[1])]
    fitted = [k @ torch.linalg.lstsq(k, v).solution for k, v in zip(*heads, strict=True)]
    return key, torch.cat(fitted, dim=1)


@pytest.mark.parametrize(
    ("name", "variant", "asked"),
    [
        ("qwen2", "MLA on_read", {"latent": 7}),
        ("gpt2", "MLA on_read", {"latent": 6, "method": "latent-head"}),
        ("opt", "MLA on_read", {"latent": 5, "weighed": False}),
        ("qwen2", "K=V on_read", {}),
        ("gpt2", "K=V on_read", {}),
        ("qwen2", "MQA", {"method": "mean"}),
    ],
)
def test_what_is_lost_is_what_the_tokens_lose(name, variant, asked):
    model = MODELS[name]()
    new, record = converted(model, variant, **asked)
    for given, layer in zip(layer_by_layer(model, ids()), record.layers, strict=True):
        x_NM, was = given.x_BTM.flatten(0, 1), seam(model, given.layer)
        own = was.k_proj(x_NM), was.v_proj(x_NM)
        with torch.no_grad():
            found = remade(seam(new, given.layer), x_NM, own)
            missed, whole = (
                [float(one.square().sum()) for one in pair] for pair in ((own[0] - found[0], own[1] - found[1]), own)
            )
        assert layer.lost == pytest.approx(sum(missed) / sum(whole))
        assert (layer.lost_key, layer.lost_value) == pytest.approx((missed[0] / whole[0], missed[1] / whole[1]))
        assert layer.lost > 1e-6


@pytest.mark.parametrize(
    ("variant", "asked"),
    [
        ("MLA on_read", {"cache": 0.4}),
        ("MLA", {"rotary_dims": 6}),
        ("K=V on_read", {}),
        ("K=V decoupled", {"layers": (0, 2)}),
        ("MQA", {}),
    ],
)
def test_biases_of_0_are_none(variant, asked):
    plain = source()
    config = copy.deepcopy(plain.config)
    config.qkv_bias = True
    biased = TwofoldForCausalLM(config).double().eval()
    zeros = {name: torch.zeros_like(one) for name, one in biased.state_dict().items() if name.endswith("proj.bias")}
    biased.load_state_dict({**plain.state_dict(), **zeros})
    (new, record), (other, known) = (shared(model, variant, **asked) for model in (biased, plain))
    torch.testing.assert_close(logits(new), logits(other), atol=1e-9, rtol=0)
    assert [one.cache_numbers for one in record.layers] == [one.cache_numbers for one in known.layers]
    assert record.rotary_pairs == known.rotary_pairs
    assert all(float(one.abs().max()) < 1e-12 for name, one in new.state_dict().items() if name.endswith("proj.bias"))


@pytest.mark.parametrize("method", ["low-rank", "mean"])
@pytest.mark.parametrize("name", ["qwen2, wide rows", "gpt2"])
def test_equal_heads_with_equal_biases_merge_to_the_same_model(name, method):
    model = MODELS[name]()
    heads = model.config.architecture.kv_heads
    target = {6: "GQA-2", 3: "MQA"}[heads]
    with torch.no_grad():
        for layer in range(model.config.num_hidden_layers):
            for own in (seam(model, layer).k_proj, seam(model, layer).v_proj):
                for one in (own.weight, own.bias):
                    runs = one.unflatten(0, (heads // 3, 3, -1))
                    runs.copy_(runs[:, :1].clone())
    new, record = converted(model, target, method=method)
    torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)
    assert record.cache_share == pytest.approx(1 / 3)


def test_where_nothing_turns_heads_that_are_maps_of_one_merge_to_the_same_model():
    """Keys as well as values; with rotary, keys that are no complex multiples lose something."""
    for name, exact in (("gpt2", True), ("opt", True), ("qwen2", False)):
        model = MODELS[name]()
        heads, dims = model.config.architecture.kv_heads, model.config.architecture.head_dim
        with torch.no_grad():
            for layer in range(model.config.num_hidden_layers):
                for own in (seam(model, layer).k_proj, seam(model, layer).v_proj):
                    map_GDD = drawn(heads, dims, dims, seed=layer)
                    put_map(own, (map_GDD @ map_of(own)[:dims]).flatten(0, 1))
        new, record = converted(model, "MQA")
        lost = [one.lost_key for one in record.layers]
        assert (max(lost) < 1e-12) if exact else (min(lost) > 1e-3)
        if exact:
            torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "opt"])
@pytest.mark.parametrize("variant", ["K=V on_read", "MQA"])
def test_fitting_again_never_raises_the_error(name, variant):
    model, fitted = MODELS[name](), int(WINDOWS * FITTED)
    new, record = converted(model, variant)
    before, _ = converted(model, variant, refit=False)
    for given, layer in zip(layer_by_layer(model, ids()), record.layers, strict=True):
        errors = []
        for one in (before, new):
            with torch.no_grad():
                made = seam(one, given.layer).o_proj(reads_of(one, given.layer, given.x_BTM))
            errors.append((made - given.output_BTM).square().sum((1, 2)))
        assert float(errors[1][:fitted].sum()) <= float(errors[0][:fitted].sum())
        assert layer.output_lost <= layer.output_lost_unfitted
        whole = float(given.output_BTM[fitted:].square().sum())
        told = layer.output_lost_unfitted, layer.output_lost
        assert told == pytest.approx(tuple(float(one[fitted:].sum()) / whole for one in errors))
        kept, own = (layer_tensors(one, given.layer) for one in (before, new))
        assert all(torch.equal(kept[key], own[key]) for key in own if "o_proj" not in key)


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_layers_are_weighed_with_their_biases(name):
    """The divergence is that of a model that has the other maps, biases and all; the model stays as it is."""
    model = MODELS[name]()
    rows = []
    for layer in range(model.config.num_hidden_layers):
        key, value = (map_of(one) for one in (seam(model, layer).k_proj, seam(model, layer).v_proj))
        value = torch.cat([value[:, :-1] * 0.8, value[:, -1:] * -1.5], dim=1)
        rows.append(Rows(key, value))
    before = copy.deepcopy(model.state_dict())
    found = sensitivities(model, rows, ids())
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    for layer, one in enumerate(rows):
        other = copy.deepcopy(model)
        put_map(seam(other, layer).v_proj, one.value_RM)
        own, made = (logits(each, ids()[:1])[0].float().log_softmax(-1) for each in (model, other))
        assert found[layer] == pytest.approx(float((own.exp() * (own - made)).sum(-1).mean()), rel=1e-4)
        assert found[layer] > 1e-5


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_dead_inputs_and_keys_that_are_biases_alone_are_survived(name):
    model = MODELS[name]()
    with torch.no_grad():
        for block in model.model.layers:
            block.attention_norm.weight[:5] = 0
            if name in LEARNED:
                block.attention_norm.bias[:5] = 0
        seam(model, 1).k_proj.weight.zero_()
    sizes = model.config.architecture
    new, _ = converted(model, "MLA on_read", latent=min(2 * sizes.kv_heads * sizes.head_dim, sizes.width - 4))
    torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)
    for variant in ("K=V on_read", "MQA", *(() if name in LEARNED else ("MLA", "K=V decoupled"))):
        assert bool(seen(converted(model, variant)[0]).isfinite().all())


def test_where_nothing_turns_queries_ask_alike_at_all_distances():
    model = MODELS["gpt2"]()
    maps, inputs, text = layer_of(model, next(layer_by_layer(model, ids())))
    assert text.base is None
    still, near = importance(maps, inputs, text), importance(maps, inputs, text._replace(base=17.0), distances=(0,))
    for one, other in zip(still, near, strict=True):
        torch.testing.assert_close(one, other)
    even = maps._replace(**{name: getattr(maps, name)[:-2] for name in ("query_RM", "key_RM")}, heads=1, kv_heads=1)
    torch.testing.assert_close(mean_turns(even, Text(text.x_BTM, None)), torch.ones(1, 11, dtype=torch.complex128))


@pytest.mark.parametrize("variant", ["MLA", "K=V decoupled"])
@pytest.mark.parametrize("name", LEARNED)
def test_no_rotary_key_is_made_of_learned_positions(name, variant):
    with pytest.raises(ValueError, match=f"has learned positions, and {variant} keeps a rotary key.*take MLA on_read"):
        converted(MODELS[name](), variant)


@pytest.mark.parametrize(("name", "to"), [("qwen2", "MLA"), ("gpt2", "MLA on_read"), ("gpt2", "MQA")])
def test_the_command_makes_a_model_like_any_other(capsys, tmp_path, name, to):
    """It decodes from its cache what a full pass gives, and keeps the bytes that the record says."""
    checkpoint(name, vocab_size=VOCABULARY).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    write_texts(tmp_path / "texts")
    given = ("--text", str(tmp_path / "texts"), "--tokens", "700", "--context", "53", "--cache", "0.75")
    done = run(capsys, "convert", str(tmp_path / "model"), "--to", to, *given, "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    model = TwofoldForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert 0.4 < record["cache_share"] <= 0.75
    given = windows(2, 19)
    made, cache = stepped(model, given)
    torch.testing.assert_close(made, logits(model, given), atol=1e-4, rtol=1e-4)
    assert cache.bytes_used == record["cache_numbers"] * 2 * 19 * model.dtype.itemsize
    assert run(capsys, "generate", str(tmp_path / "out"), "ab", "--tokens", "3").code == 0
