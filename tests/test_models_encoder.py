"""The encoder: every position sees every other, terms on the scores act as written, padding is seen by nobody."""

import math

import pytest
import torch
from transformers import AutoModel, AutoModelForTokenClassification

from encoder_equations import head_written_out, written_out
from small_models import randomise, uninitialised_is_nan
from twofold.models.architecture import Architecture
from twofold.models.encoder import TwofoldEncoder, TwofoldForTokenClassification
from twofold.models.encoder_configuration import TwofoldEncoderConfig

WIDTH, HEADS, HEAD_DIM, MLP, VOCAB, CLASSES, T = 12, 6, 10, 17, 29, 7, 11
TERMS = ("", " +", " +temperature", " +key-bias", " +relative")
VARIANTS = ("QKV", "K=V", "Q=K", "Q=K=V", "K=V GQA-2", "MQA")
CASES = (
    ("QKV", "sinusoidal", "post"),
    ("K=V", "rotary", "pre"),
    ("Q=K +", "sinusoidal", "post"),
    ("Q=K=V +", "rotary", "post"),
    ("K=V GQA-2 +", "learned", "pre"),
    ("Q=K +temperature", "none", "pre"),
    ("Q=K=V +key-bias", "sinusoidal", "pre"),
    ("MQA +relative", "none", "post"),
)


def small_config(variant="QKV", positions="sinusoidal", norm_order="post", **others):
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": MLP,
        "vocab_size": VOCAB,
        "max_position_embeddings": 53,
        "num_labels": CLASSES,
        "attn_implementation": "sdpa",
    }
    return TwofoldEncoderConfig(
        **{**sizes, "variant": variant, "positions": positions, "norm_order": norm_order, **others}
    )


def small_encoder(variant="QKV", positions="sinusoidal", norm_order="post", **others):
    """In float64 and eval mode, with random values in every parameter."""
    model = TwofoldForTokenClassification(small_config(variant, positions, norm_order, **others)).double().eval()
    randomise(model)
    return model


def random_ids(batch=2, length=T):
    return torch.randint(VOCAB, (batch, length))


@pytest.mark.parametrize(("variant", "positions", "norm_order"), CASES)
def test_the_encoder_is_what_its_equations_say(variant, positions, norm_order):
    model = small_encoder(variant, positions, norm_order, hidden_act="gelu" if norm_order == "pre" else "relu")
    ids = random_ids(1)
    ours, expected = model(ids).logits[0], head_written_out(model, written_out(model, ids[0]))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
    weights, wanted = torch.randn_like(ours), list(model.parameters())
    gradients = [torch.autograd.grad((logits * weights).sum(), wanted) for logits in (ours, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "variant", [f"{sharing}{term}" for sharing, term in zip(VARIANTS, (*TERMS, " +"), strict=True)]
)
def test_a_padded_batch_equals_each_sequence_alone(variant, side, implementation):
    for positions in ("sinusoidal", "learned", "rotary", "none"):
        model = small_encoder(variant, positions, attn_implementation=implementation)
        ids, lengths = random_ids(3), (T, 4, 1)
        mask = torch.zeros(3, T, dtype=torch.long)
        for row, length in enumerate(lengths):
            mask[row, T - length :] = 1
        mask = mask if side == "left" else mask.flip(1)
        together = model(ids, attention_mask=mask).logits
        for row in range(3):
            real = mask[row].bool()
            alone = model(ids[row][real][None]).logits[0]
            torch.testing.assert_close(together[row][real], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", ["Q=K +", "MQA +relative", "K=V GQA-2"])
def test_attention_weights_come_with_eager(variant):
    model = small_encoder(variant, attn_implementation="eager")
    weights = model(random_ids(), output_attentions=True, output_hidden_states=True).attentions
    assert [tuple(layer.shape) for layer in weights] == [(2, HEADS, T, T)] * 2
    assert min(layer.min() for layer in weights) > 0  # nobody is hidden from anybody
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, HEADS, T, dtype=torch.float64))


def test_without_positions_it_is_a_function_of_sets():
    order = torch.randperm(T)
    ids = random_ids()
    for term in TERMS:
        model = small_encoder(f"Q=K{term}", "none")
        moved = torch.allclose(model(ids[:, order]).logits, model(ids).logits[:, order], rtol=0, atol=1e-10)
        assert moved == (term in ("", " +temperature")), term


@pytest.mark.parametrize("variant", ["QKV", "K=V", "Q=K=V +relative", "K=V on_read", "Q=K +temperature"])
def test_under_rotary_only_relative_positions_matter(variant):
    model = small_encoder(variant, "rotary")
    ids = random_ids()
    near, far = (model(ids, position_ids=torch.arange(T)[None] + start).logits for start in (0, 10_000))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-8)


@pytest.mark.parametrize("variant", ["Q=K=V diagonal +", "simplified", "QKV no-WV +relative", "K=V rank-3"])
def test_other_ways_to_project_work(variant):
    model = small_encoder(variant, head_dim=2)
    model(ids := random_ids(), labels=ids % CLASSES).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("variant", "positions", "norm_order"), CASES)
def test_a_saved_model_loads_as_it_was(variant, positions, norm_order, tmp_path):
    model = small_encoder(variant, positions, norm_order)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded) is TwofoldForTokenClassification
    assert loaded.config.variant == variant
    body = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(body) is TwofoldEncoder
    for ours, theirs in ((model, loaded), (model.model, body)):
        assert theirs.state_dict().keys() == ours.state_dict().keys()
        assert all(torch.equal(theirs.state_dict()[name], value) for name, value in ours.state_dict().items())
        ids = random_ids()
        torch.testing.assert_close(theirs(ids)[0], ours(ids)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("term", TERMS[2:])
def test_a_control_added_to_a_trained_model_changes_nothing_at_first(term, tmp_path):
    model = small_encoder("Q=K")
    model.save_pretrained(tmp_path)
    with uninitialised_is_nan():
        more = TwofoldForTokenClassification.from_pretrained(
            tmp_path, config=small_config(f"Q=K{term}"), dtype=torch.float64
        )
    ids = random_ids()
    torch.testing.assert_close(more(ids).logits, model(ids).logits, rtol=0, atol=1e-12)


def test_the_published_term_starts_as_its_source_does():
    model = TwofoldEncoder(small_config("Q=K +", num_hidden_layers=40, term_per_head=True))
    drawn = torch.cat([block.position_term.weight.flatten() for block in model.layers]).detach()
    assert drawn.std().item() == pytest.approx(math.sqrt(2 / 11), rel=0.05)
    assert all(not block.position_term.bias.any() for block in model.layers)


def test_given_embeddings_and_no_table():
    model = small_encoder("Q=K +")
    ids = random_ids()
    embedded = model.model.embed_tokens(ids)
    assert torch.equal(model(inputs_embeds=embedded).logits, model(ids).logits)
    bare = TwofoldEncoder(small_config(vocab_size=0))
    assert bare.embed_tokens is None
    assert bare(inputs_embeds=torch.randn(2, T, WIDTH)).last_hidden_state.shape == (2, T, WIDTH)
    with pytest.raises(ValueError, match="reads embeddings and has no embedding for input_ids: give inputs_embeds"):
        bare(ids)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds, and no other input; given: input_ids, "):
        model(ids, inputs_embeds=embedded)


def test_the_loss_counts_labelled_positions_only():
    model = small_encoder("Q=K=V +")
    ids, labels = random_ids(), torch.randint(CLASSES, (2, T))
    labels[0, 3:] = -100
    out = model(ids, labels=labels)
    surprises = [
        -out.logits[b, t].log_softmax(-1)[labels[b, t]] for b in range(2) for t in range(T) if labels[b, t] >= 0
    ]
    assert out.loss.item() == pytest.approx(torch.stack(surprises).mean().item(), rel=1e-6)


def test_checkpointing_changes_no_gradient():
    gradients = []
    for checkpointing in (False, True):
        model = small_encoder("Q=K +").train()
        if checkpointing:
            model.activation_checkpointing_enable()
        ids = torch.arange(2 * T).view(2, T)
        model(ids, labels=ids % CLASSES).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_near_float32(autocast):
    model = small_encoder("Q=K +").float()
    ids = random_ids()
    mask = torch.ones_like(ids)
    mask[0, -4:] = 0
    exact = model(ids, attention_mask=mask).logits
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        near = (model if autocast else model.bfloat16())(ids, attention_mask=mask).logits
    assert (near.float() - exact)[mask.bool()].std() < 0.1 * exact[mask.bool()].std()


@pytest.mark.parametrize("variant", ["Q=K +", "Q=K=V +relative"])
def test_it_learns_to_reverse(variant):
    torch.manual_seed(1)
    config = TwofoldEncoderConfig(variant=variant, hidden_size=32, num_attention_heads=2, vocab_size=10, num_labels=10)
    model = TwofoldForTokenClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(150):
        ids = torch.randint(10, (64, 8))
        loss = model(ids, labels=ids.flip(1)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * math.log(10)  # chance is ln 10


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"variant": "Q=K linear"}, "a recurrence reads what came before"),
        ({"variant": "K=V kept", "positions": "rotary"}, "an encoder caches nothing"),
        ({"variant": "MLA"}, "an encoder caches nothing"),
        ({"variant": "CLA-2"}, "drop CLA and tied"),
        ({"variant": "GQA-4"}, "6 query heads cannot be shared out evenly among 4"),
        ({"variant": "QKV no-WV"}, "6 heads × 10 dims must be the width 12"),
        ({"variant": "Q=K", "term_per_head": True}, "term_per_head says nothing to Q=K"),
        ({"variant": "Q=K +", "term_channels": 2}, "2 channels"),
        ({"positions": "rotary", "head_dim": 5}, "head_dim must be even, not 5"),
        ({"positions": "absolute"}, "positions 'absolute' is unknown: choose sinusoidal"),
        ({"norm_order": "before"}, "norm_order 'before' is unknown"),
        ({"hidden_act": "tanh"}, "hidden_act 'tanh' is unknown"),
        ({"head_dim": 0, "num_attention_heads": 5}, "width 12 is not a multiple of 5 heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, not 0"),
        ({"vocab_size": -1}, "not -1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
    ],
)
def test_what_no_encoder_can_be_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        small_config(**given)


def test_what_cannot_be_computed_is_refused():
    model = small_encoder("Q=K +", "learned", max_position_embeddings=5)
    with pytest.raises(ValueError, match="position 10 is past the 5 learned positions"):
        model(random_ids())
    with pytest.raises(ValueError, match="attention_mask covers 3 positions, and there are 5"):
        model(random_ids(2, 5), attention_mask=torch.ones(2, 3))
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match=r"'flex_attention' takes no float mask.*Q=K \+ needs: use eager or sdpa"):
        model(random_ids(2, 5))


@pytest.mark.parametrize("term", TERMS[1:])
def test_a_causal_decoder_refuses_every_term(term):
    with pytest.raises(ValueError, match="non-causal models, and this is a causal decoder"):
        Architecture(layers=1, width=16, heads=2, mlp=32, vocab=11, positions=8, block="paper", variant=f"Q=K{term}")


@pytest.mark.parametrize("name", ["window", "rotary", "layers"])
def test_a_field_that_an_encoder_does_not_have_is_refused(name):
    with pytest.raises(ValueError, match=f"has no {name}, and would never read it"):
        TwofoldEncoderConfig(**{name: 3})
