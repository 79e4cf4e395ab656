"""Models that normalise queries and keys by head (Qwen3) are made to share: the norms stay where they stand."""

import copy
import json

import pytest
import torch

from command_line import run
from shared_layers import DIMS, WIDTH, correlated, drawn, small_maps, turned
from small_checkpoints import checkpoint
from small_models import small_model
from small_sharing import FEW, converted, ids, logits, seam, seen, stepped, windows
from tiny_study import write_texts
from twofold.conversion.affine import map_of, put_map
from twofold.conversion.convert import convert_in
from twofold.conversion.importance import importance
from twofold.conversion.layer_maps import Norms
from twofold.conversion.rotary_importance import Text
from twofold.conversion.sensitivity import sensitivities
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer
from twofold.explain.sharing import Rows, inputs_of
from twofold.models.decoder import TwofoldForCausalLM

NORMS = ("q_norm", "k_norm")


def family(name, **others):
    """Taken in, with scores large enough that keys matter."""
    model = checkpoint(name, **others).double()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            parameter.mul_(3 if part.endswith(("q_norm.weight", "k_norm.weight")) else 0.7)
    return convert_in(model).eval()


MODELS = {
    "qwen3": lambda: family("qwen3, head dim 10"),
    "qwen3, windows": lambda: family("qwen3 untied, windows"),
    "biases": lambda: small_model("GQA-2", qk_norm=True, qkv_bias=True),
    "learned positions": lambda: small_model("GQA-2", "paper", "none", qk_norm=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_widest_latent_is_the_same_model(name):
    model = MODELS[name]()
    sizes = model.config.architecture
    given = sizes.width + sizes.layer_sizes().input_biases
    widest, by_head = (
        parts * min(2 * sizes.kv_heads * sizes.head_dim // parts, given) for parts in (1, sizes.kv_heads)
    )
    for asked in ({"latent": widest}, {"latent": by_head, "method": "latent-head"}, {"latent": widest, "refit": False}):
        new, _ = converted(model, "MLA on_read", **asked)
        torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)
    for layer in range(sizes.layers):
        for norm in NORMS:
            one, other = (getattr(seam(each, layer), norm).weight for each in (new, model))
            assert torch.equal(one, other)
    narrow, record = converted(model, "MLA on_read", latent=5)
    assert float((seen(narrow) - seen(model)).abs().max()) > 1e-2
    assert min(one.lost_key for one in record.layers) > 1e-3


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("variant", "asked"),
    [("MLA on_read", {"cache": 0.75}), ("MLA on_read", {"latent": 8}), ("MQA", {"method": "mean", "cache": 0.75})],
)
def test_steps_equal_the_full_pass_and_keep_the_bytes_of_the_record(name, variant, asked):
    """In float32 and with 8 dims, where steps go to a kernel that takes scores on rows, were they not refused it."""
    new, record = converted(MODELS[name](), variant, **asked)
    assert record.cache_share <= 0.75
    new, given = new.float(), windows(2, 19) % FEW
    made, cache = stepped(new, given)
    torch.testing.assert_close(made, logits(new, given), atol=1e-4, rtol=1e-4)
    if not new.config.architecture.window:  # beyond which rows go
        assert cache.bytes_used == record.cache_numbers * 2 * 19 * new.dtype.itemsize


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_of_equal_heads_is_the_same_model(name):
    model = MODELS[name]()
    with torch.no_grad():
        for layer in range(model.config.num_hidden_layers):
            for own in (seam(model, layer).k_proj, seam(model, layer).v_proj):
                heads_GDM = map_of(own).unflatten(0, (seam(model, layer).kv_heads, -1))
                put_map(own, heads_GDM[:1].expand_as(heads_GDM).flatten(0, 1))
    new, record = converted(model, "MQA", method="mean")
    torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)
    assert record.cache_share == 1 / seam(model, 0).kv_heads


def test_an_error_counts_by_the_scores_that_it_changes_through_the_norms():
    """Of a key of its head's mean length, and errors across it: small differences of scores, by all queries."""
    maps, x, distances, step = small_maps(kv_heads=3), correlated(tokens=31), (0, 2, 7), 1e-5
    norms = Norms(drawn(DIMS, seed=41), drawn(DIMS, seed=42))
    counted = importance(maps._replace(norms=norms), inputs_of(x), Text(x.unflatten(0, (1, -1)), 100.0), distances)

    def normed(z, weight_D):
        return z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight_D

    def at(z_HD, distance):
        return turned(z_HD.expand(distance + 1, *z_HD.shape))[distance]

    query_NGHD = normed((x @ maps.query_RM.T).unflatten(1, (3, 4, DIMS)), norms.query_D)
    key_NGD = (x @ maps.key_RM.T).unflatten(1, (3, DIMS))
    ratios = []
    for head in range(3):
        key_D, error_D = drawn(DIMS, seed=51 + head), drawn(DIMS, seed=61 + head)
        key_D *= (key_NGD[:, head].square().mean() / key_D.square().mean()).sqrt()
        error_D -= key_D * (key_D @ error_D) / (key_D @ key_D)
        moved_D = (normed(key_D + step * error_D, norms.key_D) - normed(key_D, norms.key_D)) / step
        query_NHD = query_NGHD[:, head]
        changed = [(at(query_NHD.flatten(0, 1), one) @ moved_D).square().sum() / len(x) for one in distances]
        ratios.append(float(error_D @ counted.key_GDD[head] @ error_D) / float(sum(changed)))
    assert ratios[1:] == pytest.approx(ratios[:1] * 2, rel=1e-3)
    plain = importance(maps, inputs_of(x), Text(x.reshape(1, -1, WIDTH), 100.0), distances)
    torch.testing.assert_close(counted.value_GDD, plain.value_GDD)


def test_layers_are_weighed_under_their_norms():
    """The divergence is that of a model that has the other keys."""
    model = MODELS["qwen3"]()
    rows = [Rows(map_of(one.k_proj).flip(0), map_of(one.v_proj)) for one in (seam(model, layer) for layer in range(3))]
    found = sensitivities(model, rows, ids())
    for layer, one in enumerate(rows):
        other = copy.deepcopy(model)
        put_map(seam(other, layer).k_proj, one.key_RM)
        own, made = (logits(each, ids()[:1])[0].float().log_softmax(-1) for each in (model, other))
        assert found[layer] == pytest.approx(float((own.exp() * (own - made)).sum(-1).mean()), rel=1e-4)
        assert found[layer] > 1e-5


def test_keys_that_are_0_are_survived():
    model = MODELS["qwen3"]()
    with torch.no_grad():
        seam(model, 0).k_proj.weight[:10] = 0
        seam(model, 1).k_proj.weight.zero_()
    new, _ = converted(model, "MLA on_read", latent=24)
    torch.testing.assert_close(seen(new), seen(model), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("variant", "asked"),
    [("MLA", {}), ("K=V decoupled", {}), ("K=V on_read", {}), ("MQA", {}), ("MQA", {"cache": 0.6})],
)
def test_what_norms_do_not_go_with_is_refused(variant, asked):
    with pytest.raises(ValueError, match=r"normalises queries and keys.*take MLA on_read, or GQA-g or MQA by .* mean"):
        converted(MODELS["qwen3"](), variant, **asked)


@pytest.mark.parametrize("options", [("--to", "MLA on_read", "--cache", "0.75"), ("--to", "MQA", "--method", "mean")])
def test_the_command_makes_a_model_like_any_other(capsys, tmp_path, options):
    checkpoint("qwen3, head dim 10", vocab_size=VOCABULARY).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    write_texts(tmp_path / "texts")
    given = ("--text", str(tmp_path / "texts"), "--tokens", "700", "--context", "53", "--out", str(tmp_path / "out"))
    done = run(capsys, "convert", str(tmp_path / "model"), *options, *given)
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert record["cache_share"] <= 0.75
    config = TwofoldForCausalLM.from_pretrained(tmp_path / "out").config
    assert config.qk_norm
    assert config.architecture.described == record["variant"]
    assert run(capsys, "generate", str(tmp_path / "out"), "ab", "--tokens", "3").code == 0
