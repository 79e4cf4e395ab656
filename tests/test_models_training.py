"""The decoder while it trains: the loss, checkpointing, dropout, and gradients through a cache."""

import pytest
import torch
import torch.nn.functional as F

from small_models import PAIRED, STYLES, VARIANTS, random_ids, small_model

styles = pytest.mark.parametrize("style", STYLES, ids="/".join)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_equal_gradients(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-10, atol=1e-10)


def test_the_loss_is_the_mean_over_next_tokens():
    model, ids = small_model(), random_ids(2, 11)
    labels = ids.clone()
    labels[0, 3:7] = -100
    out = model(ids, labels=labels)
    target = labels[:, 1:].flatten()
    expected = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), target, ignore_index=-100)
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    shifted = F.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    assert model(ids, shift_labels=shifted).loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert model(ids).loss is None


def test_logits_may_be_kept_for_some_positions():
    model, ids = small_model(), random_ids(2, 11)
    with torch.no_grad():
        full = model(ids).logits
        torch.testing.assert_close(model(ids, logits_to_keep=3).logits, full[:, -3:])
        torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([2, 7])).logits, full[:, [2, 7]])


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize(("variant", "style"), PAIRED)
def test_checkpointing_gives_equal_gradients(variant, style, use_reentrant):
    model, ids = small_model(variant, *style).train(), random_ids(2, 11)
    plain = gradients(model, model(ids, labels=ids).loss)
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    assert_equal_gradients(gradients(model, model(ids, labels=ids).loss), plain)


def test_checkpointing_leaves_a_users_cache_empty():
    # A block that runs twice would write its rows twice.
    model, ids = small_model("K=V").train(), random_ids(2, 7)
    plain = gradients(model, model(ids, labels=ids).loss)
    model.activation_checkpointing_enable({"use_reentrant": False})
    cache = model.model.new_cache()
    assert_equal_gradients(gradients(model, model(ids, labels=ids, cache=cache).loss), plain)
    assert cache.get_seq_length() == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_flow_through_a_cache(variant):
    model, ids = small_model(variant), random_ids(2, 7)
    plain = gradients(model, model(ids, labels=ids, use_cache=False).loss)
    out = model(ids, labels=ids)
    assert out.cache.get_seq_length() == 7
    assert_equal_gradients(gradients(model, out.loss), plain)


@styles
def test_dropout_works_in_training_only(style):
    model, twin = (small_model("K=V", *style, dropout=dropout) for dropout in (0.4, 0.0))
    ids = random_ids(2, 11)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, twin(ids).logits)
        model.train()
        one, other = model(ids).logits, model(ids).logits
        assert (one - other).abs().max() > 0.1
        assert torch.equal(twin.train()(ids).logits, twin(ids).logits)
        model.eval()
        assert torch.equal(model(ids).logits, twin.eval()(ids).logits)


@pytest.mark.parametrize("silenced", ["attention.projections.o_proj", "mlp.down_proj"])
def test_dropout_works_on_both_branches(silenced):
    model, ids = small_model("K=V", "modern", dropout=0.4).train(), random_ids(2, 11)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.get_submodule(silenced).weight.zero_()
        assert (model(ids).logits - model(ids).logits).abs().max() > 0.1


def test_no_cache_is_made_in_training():
    model, ids = small_model(), random_ids(1, 5)
    assert model.train()(ids).cache is None
    assert model.eval()(ids).cache.get_seq_length() == 5
    assert model(ids, use_cache=False).cache is None
    model.config.use_cache = False
    assert model(ids).cache is None


@styles
def test_packed_training_sees_one_text(style):
    # No mask and no positions: position t sees all before it, and nothing after it.
    model, ids = small_model("Q=K=V", *style), random_ids(1, 11)
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 29
    with torch.no_grad():
        before, after = model(ids).logits[0], model(changed).logits[0]
    assert torch.equal(before[:6], after[:6])
    assert (before[6:] - after[6:]).abs().amax(-1).min() > 1e-3


def test_embeddings_may_be_given_in_place_of_tokens():
    model, ids = small_model("K=V"), random_ids(2, 7)
    with torch.no_grad():
        embedded = model.get_input_embeddings()(ids)
        assert torch.equal(model(inputs_embeds=embedded).logits, model(ids).logits)
        for both in ({}, {"input_ids": ids, "inputs_embeds": embedded}):
            with pytest.raises(ValueError, match="give either input_ids or inputs_embeds"):
                model(**both)


def test_hidden_states_and_attention_weights_on_request():
    model, ids = small_model("K=V GQA-2", attn_implementation="eager"), random_ids(2, 7)
    with torch.no_grad():
        out = model(ids, output_hidden_states=True, output_attentions=True)
    assert [tuple(h.shape) for h in out.hidden_states] == [(2, 7, 13)] * 3
    assert [tuple(a.shape) for a in out.attentions] == [(2, 6, 7, 7)] * 2
    for weights in out.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6, 7, dtype=torch.float64))
        assert weights.triu(1).abs().max() == 0
