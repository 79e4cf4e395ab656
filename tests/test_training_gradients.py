"""What reaches q, k and v while a model trains: against passes in which one of them alone is let through."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import twofold.attention.layer
from small_encoders import encoder_of
from small_models import random_ids, small_model
from tiny_study import CONTEXT, documents, tiny_model
from twofold.attention.scores import attend
from twofold.data.packing import Windows
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.training import requirements
from twofold.training.gradients import GradientWatch
from twofold.training.metrics import METRICS_FILE, read_metrics
from twofold.training.run import train
from twofold.training.settings import TrainingSettings

ROLES = ("query", "key", "value")
BATCH, T = 2, 11
SHARED = {"query": "k_proj", "value": "k_proj"}
CASES = [
    ("QKV", {}),
    ("QKV", {"fused_projections": True}),
    ("QKV", {"qk_norm": True, "sinks": True}),
    ("K=V", {}),
    ("K=V", {"block": "paper", "rotary": "none"}),
    ("K=V on_read", {}),
    ("K=V kept", {"rotary": "partial", "rotary_dims": 4}),
    ("K=V decoupled", {"rotary": "partial", "rotary_dims": 4}),
    ("Q=K", {}),
    ("Q=K=V", {}),
    ("Q=K=V", {"attn_implementation": "eager"}),
    ("Q=K=V diagonal", {"block": "paper", "rotary": "none"}),
    ("GQA-2", {}),
    ("K=V GQA-2", {}),
    ("K=V MQA", {"block": "paper"}),
    ("MLA", {"rotary": "partial", "rotary_dims": 8, "latent_dims": 24}),
    ("QKV CLA-2", {}),
    ("QKV rank-3", {}),
    ("no-WK", {"hidden_size": 60}),
]
WINDOWS = Windows(tokenise(documents(), BYTES), CONTEXT)


def batch_of(model):
    torch.manual_seed(5)
    if model.config.model_type == "twofold_encoder":
        return {"input_ids": torch.randint(29, (BATCH, T)), "labels": torch.randint(7, (BATCH, T))}
    return {"input_ids": random_ids(BATCH, T), "labels": random_ids(BATCH, T)}


def noted(model, passes=1):
    """What the watch notes of a step of some equal passes."""
    watch = GradientWatch(model, every=3)
    watch.on_step_begin(None, SimpleNamespace(global_step=2), None)
    for _ in range(passes):
        (model(**batch_of(model)).loss / passes).backward()
    watch.on_pre_optimizer_step(None, SimpleNamespace(global_step=2), None)
    return watch.found[3]


def gradient_of(model, layer, role, monkeypatch):
    """dL/d(what the role's vectors are made by), where the two other roles of that layer let nothing through."""
    layers = [block.attention for block in model.base_model.layers]
    owners = model.config.architecture.row_owners if model.config.model_type == "twofold" else range(len(layers))
    owner = owners[layer]
    seam = layers[layer if role == "query" else owner].projections
    variant, kept = seam.variant, []
    if variant.latent:
        name = "q_proj" if role == "query" else "latent_proj"
    elif seam.fused:
        name = "qkv_proj"
    else:
        shares = (role == "query" and variant.sharing.query_is_key) or (
            role == "value" and variant.sharing.value_is_key
        )
        name = "k_proj" if shares else f"{role[0]}_proj"

    def alone(module, query, key, value, *others, **named):
        if module is layers[layer]:
            given = {"query": query, "key": key, "value": value}
            query, key, value = (one if name == role else one.detach() for name, one in given.items())
        elif owners[layers.index(module)] == owner:  # it reads the same rows, and sends them what is not asked here
            key, value = key.detach(), value.detach()
        return attend(module, query, key, value, *others, **named)

    def keep(module, given, output=None):
        kept.append(given[0] if output is None else output)
        kept[-1].retain_grad()

    module = seam._modules.get(name)
    hook = seam.register_forward_pre_hook(keep) if module is None else module.register_forward_hook(keep)
    with monkeypatch.context() as patch:
        patch.setattr(twofold.attention.layer, "attend", alone)
        model(**batch_of(model)).loss.backward()
    hook.remove()
    (vectors,) = kept
    if seam.fused:
        start = {"query": 0, "key": 60, "value": 120}[role]
        return vectors.grad[..., start : start + 60]
    return vectors.grad if module is not None else None


def check_measures(model, found, monkeypatch):
    for measures in found:
        layer = measures["layer"]
        parts = {role: gradient_of(model, layer, role, monkeypatch) for role in ROLES}
        for role, part in parts.items():
            if part is None:  # the layer's input itself, which other ways reach as well
                continue
            assert measures[f"variance_{role[0]}"] == pytest.approx(float(part.square().mean()), rel=1e-9)
        for one, other in (("query", "key"), ("query", "value"), ("key", "value")):
            name = f"cosine_{one[0]}{other[0]}"
            if parts[one] is None or parts[other] is None:
                continue
            if parts[one].shape != parts[other].shape:
                assert measures[name] is None
                continue
            expected = torch.nn.functional.cosine_similarity(parts[one].flatten(), parts[other].flatten(), dim=0)
            assert measures[name] == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("variant", "fields"), CASES)
def test_each_part_is_what_comes_by_its_role_alone(variant, fields, monkeypatch):
    model = small_model(variant, **fields)
    found = noted(model)
    assert [one["layer"] for one in found] == [0, 1]
    check_measures(model, found, monkeypatch)
    assert all(one[f"variance_{letter}"] > 0 for one in found for letter in "qkv")


@pytest.mark.parametrize("variant", ["QKV", "Q=K +", "K=V +relative"])
def test_encoders_too(variant, monkeypatch):
    model = encoder_of("tokens", "positions", variant)
    check_measures(model, noted(model), monkeypatch)


def test_the_parts_of_a_shared_vector_sum_to_its_gradient():
    model, kept = small_model("Q=K=V"), []
    for block in model.model.layers:
        block.attention.projections.k_proj.register_forward_hook(lambda _, __, out: kept.append(out))
    found = noted(model)
    model.zero_grad()
    for one in found:
        variances = [one[f"variance_{letter}"] for letter in "qkv"]
        pairs = {"qk": (0, 1), "qv": (0, 2), "kv": (1, 2)}
        crossed = sum(one[f"cosine_{name}"] * math.sqrt(variances[a] * variances[b]) for name, (a, b) in pairs.items())
        one["whole"] = sum(variances) + 2 * crossed
    kept.clear()
    loss = model(**batch_of(model)).loss
    whole = torch.autograd.grad(loss, kept)
    for one, gradient in zip(found, whole, strict=True):
        assert one["whole"] == pytest.approx(float(gradient.square().mean()), rel=1e-9)


def test_passes_of_one_step_are_noted_together():
    once, twice = (noted(small_model("K=V GQA-2"), passes) for passes in (1, 2))
    for one, other in zip(once, twice, strict=True):
        for letter in "qkv":
            assert other[f"variance_{letter}"] == pytest.approx(one[f"variance_{letter}"] / 4)
        assert other["cosine_kv"] == pytest.approx(one["cosine_kv"])
        assert other["cosine_qk"] is one["cosine_qk"] is None


def test_a_recurrence_has_no_scores_to_tell_roles_apart():
    assert noted(small_model("K=V linear", rotary="none")) == []


def trained(folder, variant, **settings):
    model = tiny_model(variant, seed=3, block="paper", dropout=0.2, rotary="full")
    chosen = TrainingSettings(batch=2, checkpoints=0, **settings)
    steps = train(model, WINDOWS, chosen, steps=5, length=CONTEXT, seed=1, folder=folder)
    return model.state_dict(), steps


@pytest.mark.parametrize("variant", ["QKV", "K=V", "Q=K=V", "K=V GQA-2"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_is_the_same_bit_by_bit_and_nothing_stays_behind(tmp_path, variant, precision):
    settings = {"precision": precision, "accumulation": 2}
    weights, plain = trained(tmp_path / "plain", variant, **settings)
    watched, steps = trained(tmp_path / "watched", variant, gradients_every=2, **settings)
    assert all(torch.equal(watched[name], value) for name, value in weights.items())
    assert [step.loss for step in plain] == [step.loss for step in steps]
    assert [step.gradient_norm for step in plain] == [step.gradient_norm for step in steps]
    assert [step.step for step in steps if step.gradients] == [2, 4]
    assert not ALL_ATTENTION_FUNCTIONS._local_mapping


def test_metrics_hold_them_where_they_were_asked_for(tmp_path):
    _, steps = trained(tmp_path, "K=V", gradients_every=2)
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    assert ["gradients" in line for line in lines] == [False, True, False, True, False]
    names = {"layer", *(f"variance_{letter}" for letter in "qkv"), "cosine_qk", "cosine_qv", "cosine_kv"}
    assert [set(layer) for layer in lines[1]["gradients"]] == [names, names]
    assert read_metrics(tmp_path) == steps
    _, plain = trained(tmp_path / "plain", "K=V")
    assert all(step.gradients is None for step in plain)
    assert "gradients" not in (tmp_path / "plain" / METRICS_FILE).read_text()


def test_a_run_that_breaks_off_leaves_nothing_hooked():
    model = small_model("K=V")
    watch = GradientWatch(model, every=1)
    watch.on_step_begin(None, SimpleNamespace(global_step=0), None)
    assert any(module._forward_hooks for module in model.modules())
    watch.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not ALL_ATTENTION_FUNCTIONS._local_mapping
    watch.on_pre_optimizer_step(None, SimpleNamespace(global_step=0), None)
    assert watch.found == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"compile": True}, "compile"), ({"gradient_checkpointing": True}, "gradient_checkpointing")],
)
def test_what_hides_gradients_is_refused(settings, reason):
    with pytest.raises(ValueError, match=f"gradients_every does not go with {reason}"):
        requirements.check(TrainingSettings(gradients_every=2, **settings))
