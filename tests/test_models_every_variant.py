"""Whole models of every variant as Hugging Face models: saved, copied, counted, trained, and generating."""

import copy

import pytest
import torch

from every_variant import EVERY, KINDS, VOCAB, WINDOWED, every_config, every_model
from small_models import random_ids
from twofold.analysis import costs
from twofold.attention.projections import Projections
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fusing import fuse, separate
from twofold.models.initialise import initialise

LENGTH = 9


def fresh(name, **others):
    """As a training starts, in float32."""
    model = TwofoldForCausalLM(every_config(name, **others))
    initialise(model, seed=0)
    return model


@pytest.mark.parametrize("name", EVERY)
def test_parameters_are_as_counted_and_stored_once(name):
    model = every_model(name)
    assert costs.measured_parameters(model) == costs.parameters(model.config.architecture)
    pointers = [p.data_ptr() for key, p in model.state_dict().items() if key != "lm_head.weight"]
    assert len(pointers) == len(set(pointers))
    seams = [module for module in model.modules() if isinstance(module, Projections)]
    assert len(seams) == len(set(model.config.architecture.matrix_owners))


@pytest.mark.parametrize("name", EVERY)
def test_a_saved_model_is_the_same(name, tmp_path):
    model, ids = every_model(name), random_ids(2, LENGTH)
    model.save_pretrained(tmp_path)
    loaded = TwofoldForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="sdpa").eval()
    assert loaded.config.architecture == model.config.architecture
    kept = model.state_dict()
    assert loaded.state_dict().keys() == kept.keys()
    assert all(torch.equal(p, kept[key]) for key, p in loaded.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_a_copy_stands_alone(name):
    model, ids = every_model(name), random_ids(2, LENGTH)
    with torch.no_grad():
        before = model(ids).logits
        other = copy.deepcopy(model)
        assert torch.equal(other(ids).logits, before)
        for p in other.parameters():
            p.mul_(2)
        assert torch.equal(model(ids).logits, before)
        assert not torch.equal(other(ids).logits, before)
        narrow = copy.deepcopy(model).to(torch.bfloat16)
        assert {p.dtype for p in narrow.parameters()} == {narrow(ids).logits.dtype} == {torch.bfloat16}
        owners = model.config.architecture.matrix_owners
        of_layers = [layer.attention.projections for layer in other.model.layers]
        assert all(seam is of_layers[owner] for seam, owner in zip(of_layers, owners, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_stacked_projections_give_the_same_or_are_refused(name):
    model, ids = every_model(name), random_ids(2, LENGTH)
    matrices = {key for key, p in model.named_parameters() if "projections." in key and p.ndim == 2}
    plain = all(key.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")) for key in matrices)
    if not plain or len(matrices) == len(set(model.config.architecture.matrix_owners)):
        with pytest.raises(ValueError, match="cannot be stacked into one matrix"):
            fuse(model)
        return
    stacked = fuse(model)
    assert any("qkv_proj" in key for key in stacked.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(stacked(ids).logits, model(ids).logits, rtol=0, atol=1e-11)
    back = separate(stacked).state_dict()
    assert all(torch.equal(p, back[key]) for key, p in model.state_dict().items())


@pytest.mark.parametrize("name", EVERY)
def test_checkpointed_gradients_are_the_same(name):
    model, ids = every_model(name, deviation=0.3).train(), random_ids(2, LENGTH)
    made = {}
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        made[checkpointing] = {key: p.grad.clone() for key, p in model.named_parameters()}
    for key, gradient in made[False].items():
        torch.testing.assert_close(made[True][key], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_a_few_steps_on_one_batch_lower_its_loss(name):
    model, ids = fresh(name).train(), random_ids(2, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("name", [name for name in EVERY if "CLA" in name or "tied" in name])
def test_reentrant_checkpoints_are_right_or_refused(name):
    # To a row that one layer makes and another reads, torch's reentrant checkpoints pass no gradient.
    model, ids = every_model(name, deviation=0.3).train(), random_ids(2, LENGTH)
    if "CLA" in name:
        for given in ({"use_reentrant": True}, {}):
            with pytest.raises(ValueError, match="give use_reentrant=False"):
                model.activation_checkpointing_enable(given)
        return
    model(ids, labels=ids).loss.backward()
    expected = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    model.activation_checkpointing_enable({"use_reentrant": True})
    model(ids, labels=ids).loss.backward()
    for key, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[key], rtol=1e-10, atol=1e-12)


def generated(model, ids, mask, **options):
    return model.generate(
        ids, attention_mask=mask, max_new_tokens=4, pad_token_id=VOCAB - 1, **{"do_sample": False, **options}
    )


def padded():
    ids = random_ids(3, 5)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return ids, mask


@pytest.mark.parametrize("name", EVERY)
def test_generation_with_a_cache_equals_that_without(name):
    # In float32, so that cached steps take the native kernel where there is one.
    model, (ids, mask) = every_model(name, deviation=0.3).float(), padded()
    assert torch.equal(generated(model, ids, mask), generated(model, ids, mask, use_cache=False))


@pytest.mark.parametrize("name", [*KINDS[::3], *WINDOWED])
def test_beams_with_a_cache_equal_those_without(name):
    model, (ids, mask) = every_model(name, deviation=0.3), padded()
    beams = {"num_beams": 2, "num_return_sequences": 2}
    assert torch.equal(generated(model, ids, mask, **beams), generated(model, ids, mask, use_cache=False, **beams))


@pytest.mark.parametrize("name", [*WINDOWED, *(name for name in KINDS if "CLA-2" in name)])
def test_every_way_to_generate(name):
    model, (ids, mask) = every_model(name, deviation=0.3), padded()
    plain = generated(model, ids, mask)
    assert torch.equal(generated(model, ids, mask, cache_implementation="static"), plain)
    one = generated(model, ids[:1], mask[:1])
    assert torch.equal(generated(model, ids[:1], mask[:1], prompt_lookup_num_tokens=3), one)


@pytest.mark.parametrize("name", EVERY)
def test_hidden_states_and_weights_come_out(name):
    model, ids = every_model(name, attn_implementation="eager"), random_ids(2, LENGTH)
    sizes = model.config.architecture
    with torch.no_grad():
        outputs = model(ids, output_hidden_states=True, output_attentions=True)
    assert len(outputs.hidden_states) == sizes.layers + 1
    assert {tuple(hidden.shape) for hidden in outputs.hidden_states} == {(2, LENGTH, sizes.width)}
    assert {tuple(weights.shape) for weights in outputs.attentions} == {(2, sizes.heads, LENGTH, LENGTH)}
    for weights, window in zip(outputs.attentions, sizes.windows, strict=True):
        total = weights.sum(dim=-1)
        assert (total < 1).all() if sizes.sinks else torch.allclose(total, torch.ones_like(total))
        assert torch.equal(weights > 0, (weights > 0).tril().triu(1 - (window or LENGTH)))
