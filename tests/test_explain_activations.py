"""What a model computes on tokens, against q, k and v from its weights and attention written out."""

import math

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

from every_variant import EVERY, every_model
from small_encoders import VOCAB as ENCODER_VOCAB
from small_encoders import config_of, encoder_of
from small_models import random_ids, randomise, small_model
from tiny_published import tiny_config
from twofold.explain.activations import run
from twofold.explain.weights import FAMILIES
from twofold.models.encoder_build import encoder_model

T, BATCH = 11, 3
CLOSE = {"atol": 1e-9, "rtol": 1e-9}


def published_model(kind, **others):
    """In float64, with random values and a window shorter than the text."""
    config = tiny_config(kind, sliding_window=5, **others) if "gemma" in kind else tiny_config(kind, **others)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind].from_dict(config), attn_implementation="eager")
    model = model.double().eval()
    randomise(model, 0.2)
    return model


def heads(vectors, count):
    return vectors.reshape(*vectors.shape[:2], count, -1)


def linear(x, weight, bias=None):
    return torch.einsum("btm,nm->btn", x, weight) + (0 if bias is None else bias)


def softmax_by_loops(query, key, scale, *, causal=True, window=None, softcap=None):
    """[B, H, T, T] from [B, T, H, D] and [B, T, G, D], one number at a time."""
    query, key = query.detach(), key.detach()
    batch, length, count, _ = query.shape
    group = count // key.shape[2]
    found = torch.zeros(batch, count, length, length, dtype=query.dtype)
    for b in range(batch):
        for h in range(count):
            for t in range(length):
                first = 0 if window is None else max(0, t + 1 - window)
                seen = range(first, t + 1 if causal else length)
                scores = [float(query[b, t, h] @ key[b, s, h // group]) * scale for s in seen]
                scores = [softcap * math.tanh(score / softcap) for score in scores] if softcap else scores
                total = sum(math.exp(score) for score in scores)
                for s, score in zip(seen, scores, strict=True):
                    found[b, h, t, s] = math.exp(score) / total
    return found


def turned(vectors, base):
    """Rotary by half-split pairs, Su et al. 2021, one angle at a time."""
    vectors = vectors.detach()
    found, half = vectors.clone(), vectors.shape[-1] // 2
    for t in range(vectors.shape[1]):
        for i in range(half):
            angle = t * base ** (-2 * i / (2 * half))
            one, other = vectors[:, t, :, i], vectors[:, t, :, i + half]
            found[:, t, :, i] = one * math.cos(angle) - other * math.sin(angle)
            found[:, t, :, i + half] = other * math.cos(angle) + one * math.sin(angle)
    return found


@pytest.mark.parametrize("variant", ["QKV", "K=V", "Q=K", "Q=K=V", "GQA-2", "MQA", "K=V GQA-2"])
@pytest.mark.parametrize("block", ["paper", "modern"])
def test_own_roles_are_the_weights_times_the_input_and_maps_their_softmax(variant, block):
    model = small_model(variant, block, num_hidden_layers=2)
    ids = random_ids(BATCH, T)
    hidden = model(ids, output_hidden_states=True).hidden_states
    for found in run(model, ids):
        layer = model.model.layers[found.layer]
        seam = layer.attention.projections
        x = layer.attention_norm(hidden[found.layer])
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj"}
        if "Q=K" in variant:
            names["q"] = "k_proj"
        if "K=V" in variant:
            names["v"] = "k_proj"
        made = {}
        for role, name in names.items():
            matrix = getattr(seam, name)
            made[role] = heads(linear(x, matrix.weight, matrix.bias), 6 if role == "q" else seam.kv_heads)
        torch.testing.assert_close(found.x_BTM, x, **CLOSE)
        torch.testing.assert_close(found.q_BTHD, made["q"], **CLOSE)
        torch.testing.assert_close(found.k_BTGD, made["k"], **CLOSE)
        torch.testing.assert_close(found.v_BTGD, made["v"], **CLOSE)
        base = model.config.architecture.rotary_base
        expected = softmax_by_loops(turned(made["q"], base), turned(made["k"], base), 10**-0.5)
        torch.testing.assert_close(found.scored.maps_BHTT, expected, **CLOSE)
        assert (found.k_BTGD is found.v_BTGD) == ("K=V" in variant)
        assert (found.q_BTHD is found.k_BTGD) == ("Q=K" in variant)
        assert found.scored.dims == 10
        assert found.row_x_BTM is found.x_BTM
    assert found.layer == 1


def test_learned_positions_turn_nothing():
    model, ids = small_model("GQA-2", "paper", "none"), random_ids(BATCH, T)
    for found in run(model, ids):
        expected = softmax_by_loops(found.q_BTHD, found.k_BTGD, 10**-0.5)
        torch.testing.assert_close(found.scored.maps_BHTT, expected, **CLOSE)
        torch.testing.assert_close(found.scored.q_BHTD.transpose(1, 2), found.q_BTHD, **CLOSE)


@pytest.mark.parametrize("name", EVERY)
def test_of_every_variant_the_maps_are_those_of_the_model_and_follow_from_what_is_scored(name):
    model = every_model(name)
    ids = torch.randint(29, (2, 7))
    found = list(run(model, ids))
    assert [one.layer for one in found] == list(range(model.config.num_hidden_layers))
    model.set_attn_implementation("eager")
    expected = model(ids, output_attentions=True).attentions
    for one, maps in zip(found, expected, strict=True):
        torch.testing.assert_close(one.scored.maps_BHTT, maps, **CLOSE)
        assert not (maps * ~one.scored.seen_BTT[:, None]).any()
        assert ((maps.sum(-1) < 1 - 1e-9).any()) == one.scored.has_sinks
        owner = model.config.architecture.row_owners[one.layer]
        assert torch.equal(one.row_x_BTM, found[owner].x_BTM)
        assert torch.equal(one.v_BTGD, found[owner].v_BTGD)


@pytest.mark.parametrize(
    ("variant", "fields"),
    [
        ("QKV", {}),
        ("K=V GQA-2", {"block": "paper", "rotary": "none"}),
        ("K=V on_read", {}),
        ("K=V decoupled", {"rotary": "partial", "rotary_dims": 4}),
        ("MLA", {"rotary": "partial", "rotary_dims": 8, "latent_dims": 24}),
        ("MLA", {"rotary": "partial", "rotary_dims": 8, "latent_dims": 7}),
        ("MLA on_read", {"block": "paper", "rotary": "none", "latent_dims": 7, "qk_norm": True}),
        ("K=V diagonal", {"block": "paper", "rotary": "none"}),
        ("Q=K=V diagonal", {"block": "paper", "rotary": "none"}),
        ("Q=K diagonal", {"rotary": "full"}),
        ("QKV CLA-2", {}),
        ("no-WK", {"hidden_size": 60}),
        ("QKV rank-3", {}),
        ("Q=K=V", {"block": "paper", "rotary": "none", "qk_norm": True}),
        ("QKV", {"fused_projections": True}),
    ],
)
def test_the_maps_times_the_values_are_what_the_layer_gives(variant, fields):
    """And where nothing is turned, the maps are those of q and k."""
    model = small_model(variant, **fields)
    given = {}
    for layer, block in enumerate(model.model.layers):
        block.attention.register_forward_hook(lambda _, __, out, layer=layer: given.update({layer: out.output_BTM}))
    for found in run(model, random_ids(2, T)):
        group = 6 // found.v_BTGD.shape[2]
        read = torch.einsum("bhts,bshd->bthd", found.scored.maps_BHTT, found.v_BTGD.repeat_interleave(group, dim=2))
        seam = model.model.layers[found.layer].attention.projections
        expected = linear(read.flatten(2), seam.o_proj.weight, seam.o_proj.bias)
        torch.testing.assert_close(given[found.layer], expected, **CLOSE)
        if fields.get("rotary") == "none":
            maps = softmax_by_loops(found.q_BTHD, found.k_BTGD, 10**-0.5)
            torch.testing.assert_close(found.scored.maps_BHTT, maps, **CLOSE)


def test_keys_from_a_latent_have_the_rotary_key_behind_their_content():
    model = every_model("MLA, rotary_dims 8, latent_dims 24")
    for found in run(model, torch.randint(29, (2, 7))):
        seam = model.model.layers[found.layer].attention.projections
        x = found.x_BTM
        latent = seam.latent_norm(linear(x, seam.latent_proj.weight))
        shared = linear(x, seam.k_rope_proj.weight)
        for h in range(6):
            content = linear(latent, seam.k_up_proj.weight[8 * h : 8 * h + 8])
            torch.testing.assert_close(found.k_BTGD[:, :, h, :8], content, **CLOSE)
            torch.testing.assert_close(found.k_BTGD[:, :, h, 8:], shared, **CLOSE)
            torch.testing.assert_close(
                found.q_BTHD[:, :, h], linear(x, seam.q_proj.weight[16 * h : 16 * h + 16]), **CLOSE
            )
        assert found.scored.dims == 16


@pytest.mark.parametrize("kind", sorted(set(FAMILIES) - {"gemma3"}))
def test_published_roles_are_the_weights_times_the_input_and_maps_those_of_the_model(kind):
    model = published_model(kind)
    ids = torch.randint(3, 89, (BATCH, T))
    expected = model(ids, output_attentions=True).attentions
    stack = model.get_decoder()
    count = model.config.num_attention_heads
    for found in run(model, ids):
        block = (stack.h if kind == "gpt2" else stack.layers)[found.layer]
        x = found.x_BTM
        if kind == "gpt2":
            matrix = block.attn.c_attn
            parts = linear(x, matrix.weight.T, matrix.bias).split(48, dim=-1)
        else:
            matrices = [getattr(block.self_attn, f"{role}_proj") for role in "qkv"]
            parts = [linear(x, matrix.weight, matrix.bias) for matrix in matrices]
        query, key, value = (
            heads(parts[0], count),
            *(heads(part, part.shape[-1] // found.k_BTGD.shape[-1]) for part in parts[1:]),
        )
        if kind in ("qwen3", "gemma3_text"):
            query, key = block.self_attn.q_norm(query), block.self_attn.k_norm(key)
        torch.testing.assert_close(found.q_BTHD, query, **CLOSE)
        torch.testing.assert_close(found.k_BTGD, key, **CLOSE)
        torch.testing.assert_close(found.v_BTGD, value, **CLOSE)
        # transformers takes its softmax in float32
        torch.testing.assert_close(found.scored.maps_BHTT, expected[found.layer].double(), atol=2e-6, rtol=1e-5)
        scores = [found.scored.q_BHTD.transpose(1, 2), found.scored.k_BGTD.transpose(1, 2), found.scored.scale]
        window = (
            7 if kind == "mistral" else getattr(block.self_attn, "sliding_window", None) if "gemma" in kind else None
        )
        softcap = model.config.attn_logit_softcapping if kind == "gemma2" else None
        again = softmax_by_loops(*scores, window=window, softcap=softcap)
        torch.testing.assert_close(found.scored.maps_BHTT, again, **CLOSE)
    assert found.layer == 3


def test_x_is_what_the_norm_gives_and_llama_turns_by_its_base():
    model = published_model("llama")
    ids = torch.randint(3, 89, (1, T))
    hidden = model(ids, output_hidden_states=True).hidden_states
    base = model.config.rope_parameters["rope_theta"]
    for found in run(model, ids):
        norm = model.model.layers[found.layer].input_layernorm
        torch.testing.assert_close(found.x_BTM, norm(hidden[found.layer]), atol=1e-5, rtol=1e-5)
        expected = softmax_by_loops(turned(found.q_BTHD, base), turned(found.k_BTGD, base), 16**-0.5)
        torch.testing.assert_close(found.scored.maps_BHTT, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("variant", ["QKV", "Q=K", "K=V +", "Q=K=V +key-bias", "K=V GQA-2"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_an_encoder_sees_everything(variant, order):
    model = encoder_of("tokens", "positions", variant, norm_order=order)
    ids = torch.randint(ENCODER_VOCAB, (BATCH, T))
    found = list(run(model, ids))
    model.set_attn_implementation("eager")
    expected = model(ids, output_attentions=True).attentions
    for one, maps in zip(found, expected, strict=True):
        torch.testing.assert_close(one.scored.maps_BHTT, maps, **CLOSE)
        assert one.scored.seen_BTT.all()


def test_a_recurrence_has_roles_and_no_softmax():
    model = small_model("K=V linear", rotary="none")
    for found in run(model, random_ids(2, T)):
        matrix = model.model.layers[found.layer].attention.projections.k_proj
        assert found.scored is None
        assert found.k_BTGD is found.v_BTGD
        torch.testing.assert_close(found.k_BTGD, heads(linear(found.x_BTM, matrix.weight, matrix.bias), 6), **CLOSE)


def test_one_layer_is_held_at_a_time_and_the_model_is_its_own_again_between():
    model = small_model("QKV", num_hidden_layers=3).train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    told = []
    layers = run(model, random_ids(2, T), lambda *now: told.append(now), layers=[2, 0])
    first = next(layers)
    assert first.layer == 2
    assert model.config._attn_implementation == "sdpa"
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert not first.q_BTHD.requires_grad
    assert not any(module._forward_pre_hooks for module in model.modules())
    model(random_ids(2, T)).logits.sum().backward()
    assert next(layers).layer == 0
    assert told == [(1, 2), (2, 2)]
    assert next(layers, None) is None


def test_bfloat16_is_read_in_float32():
    model = small_model("K=V").to(torch.bfloat16)
    for found in run(model, random_ids(2, T)):
        assert found.x_BTM.dtype == found.scored.maps_BHTT.dtype == torch.float32
        assert found.k_BTGD is found.v_BTGD
        torch.testing.assert_close(found.scored.maps_BHTT.sum(-1), torch.ones(2, 6, T), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("ids", "layers", "reason"),
    [
        (torch.zeros(1, 1), None, "two tokens"),
        (torch.zeros(5), None, "two tokens"),
        (torch.zeros(0, 5), None, "two tokens"),
        (torch.zeros(1, 54), None, "53 positions"),
        (torch.tensor([[3, 29]]), None, "tokens 0 to 28, and the text has 29"),
        (torch.tensor([[3, -1]]), None, "the text has -1"),
        (torch.zeros(1, 5), [0, 2], "layers 0 to 1, and 2"),
        (torch.zeros(1, 5), [-1], "layers 0 to 1, and -1"),
    ],
)
def test_what_the_model_does_not_have_is_refused_at_once(ids, layers, reason):
    with pytest.raises(ValueError, match=reason):
        run(small_model(), ids.long(), layers=layers)


def test_other_models_and_other_attention_are_refused():
    with pytest.raises(ValueError, match="this is a 'bert' model"):
        run(AutoModel.from_config(CONFIG_MAPPING["bert"].from_dict(tiny_config("bert"))), torch.zeros(1, 5).long())
    with pytest.raises(ValueError, match="reorder_and_upcast_attn"):
        list(run(published_model("gpt2", reorder_and_upcast_attn=True).float(), torch.full((1, 5), 3)))
    with pytest.raises(ValueError, match="tokens"):
        run(encoder_model(config_of("features"), "positions"), torch.zeros(1, 5).long())
