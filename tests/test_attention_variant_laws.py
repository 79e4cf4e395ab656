"""What one variant has to do with another: with weights copied, outputs and gradients of the two are equal."""

import pytest
import torch

from attention_chains import assert_equal, chain, gradients
from every_variant import EVERY, HEAD_DIM, HEADS, WIDTH
from twofold.attention.latent import LatentProjections

PARTIAL = {"rotary": "partial", "rotary_dims": 4}
APART = {"rotary": "partial", "rotary_dims": 6}


def copied(name, fields, weights=None, of=None):
    """The layers of a variant that is in no list, with weights: those of other layers, or changed by `weights`."""
    layers = chain("QKV", **{"variant": name, **fields})
    state = {} if of is None else {kept: p.detach() for kept, p in of.parameters.items()}
    state |= {} if weights is None else weights
    if state:
        given = {kept: p for kept, p in state.items() if kept in layers.parameters}
        with torch.no_grad():
            for kept, p in layers.parameters.items():
                p.copy_(given[kept])
    return layers


def assert_same_outputs(one, other, x, gradients_of=()):
    of_one, of_other = one.fast(x), other.fast(x)
    assert (of_one - x).std() > 0.3
    torch.testing.assert_close(of_one, of_other, rtol=0, atol=1e-10)
    for_one, for_other = ({"x": x, **{n: layers.parameters[n] for n in gradients_of}} for layers in (one, other))
    assert_equal(gradients(of_one, for_one), gradients(of_other, for_other))


@pytest.mark.parametrize("fields", [{}, {"qk_norm": True}, {"block": "paper", "softcap": 1.3}], ids=str)
@pytest.mark.parametrize("variant", ["K=V", "K=V GQA-2", "K=V MQA", "Q=K=V", "K=V diagonal", "K=V CLA-2"])
def test_kept_equals_on_read(variant, fields):
    # The same function of the same weights; only what the cache holds differs.
    name = variant.removesuffix(" CLA-2")
    cla = " CLA-2" if name != variant else ""
    kept = copied(f"{name} kept{cla}", PARTIAL | fields)
    on_read = copied(f"{name} on_read{cla}", PARTIAL | fields, of=kept)
    assert_same_outputs(kept, on_read, kept.inputs(), kept.parameters)


@pytest.mark.parametrize("treatment", ["kept", "on_read", ""])
@pytest.mark.parametrize("heads", ["", " GQA-3", " MQA"])
def test_an_unshared_layer_with_equal_matrices_turns_keys_alone(treatment, heads):
    # Gemma 4: W_V = W_K, rotary on r dims of the key. Derotated is another function, which no copied layer has.
    shared = copied(f"K=V{heads} {treatment}", PARTIAL)
    as_values = {n.replace("k_proj", "v_proj"): p.detach() for n, p in shared.parameters.items() if "k_proj" in n}
    unshared = copied(f"QKV{heads}", PARTIAL, as_values, of=shared)
    x = shared.inputs()
    if treatment:
        assert_same_outputs(shared, unshared, x, [n for n in shared.parameters if "k_proj" not in n])
        both = gradients(unshared.fast(x), unshared.parameters)
        own = gradients(shared.fast(x), shared.parameters)
        for name in (n for n in own if "k_proj" in n):
            summed = both[name] + both[name.replace("k_proj", "v_proj")]
            torch.testing.assert_close(own[name], summed, rtol=1e-9, atol=1e-9)
    else:
        assert (shared.fast(x) - unshared.fast(x)).abs().max() > 0.1


@pytest.mark.parametrize("name", [name for name in EVERY if "MLA" in name and "on_read" not in name])
def test_absorbed_equals_expanded(name, monkeypatch):
    layers = chain(name)
    x = layers.inputs()
    of = {"x": x, **layers.parameters}
    made = {}
    for absorbs in (True, False):
        monkeypatch.setattr(LatentProjections, "reads_rows", lambda *_, chosen=absorbs: chosen)
        made[absorbs] = {"output": layers.fast(x), **gradients(layers.fast(x), of)}
    assert_equal(made[True], made[False])


@pytest.mark.parametrize(("variant", "kv_heads"), [("MLA", HEADS), ("GQA-2 MLA", 2)])
def test_mla_absorbs_where_it_costs_less(variant, kv_heads):
    seam = chain(f"{variant}, rotary_dims 8, latent_dims 24").layers[0].projections
    heads, dim, latent = HEADS, HEAD_DIM, 24
    for positions in (1, 2, 5, 11, 97):
        for rows in (positions, positions + 3, 1009):
            absorbed = 2 * heads * positions * latent * (dim + rows)  # W_UK and W_UV per query; scores and sums
            expanded = 2 * rows * dim * (kv_heads * latent + heads * positions)
            assert seam.reads_rows(positions, rows) == (absorbed < expanded)
    assert seam.reads_rows(1, 1009)
    assert not seam.reads_rows(1009, 1009)


@pytest.mark.parametrize("heads", ["", " GQA-2", " MQA"])
def test_decoupled_is_mla_with_selections_for_up_projections(heads):
    # Content is the latent; W_UK and W_UV of head h pick the part of its key/value head.
    decoupled = copied(f"K=V{heads} decoupled", APART)
    content = decoupled.sizes.kv_heads * HEAD_DIM
    names = {"k_proj": "latent_proj", "content_norm": "latent_norm"}
    state = {}
    for name, p in decoupled.parameters.items():
        layer, module, kind = name.split(".")
        state[f"{layer}.{names.get(module, module)}.{kind}"] = p.detach()
    parts = torch.eye(content, dtype=torch.float64).unflatten(0, (-1, HEAD_DIM))
    selections = parts.repeat_interleave(HEADS // decoupled.sizes.kv_heads, dim=0).flatten(0, 1)
    state |= {f"{n}.{up}.weight": selections for n in range(2) for up in ("k_up_proj", "v_up_proj")}
    latent = copied("MLA", APART | {"latent_dims": content}, state)
    shared = [n for n in decoupled.parameters if n in latent.parameters]
    assert any("q_proj" in n for n in shared)
    assert_same_outputs(decoupled, latent, decoupled.inputs(), shared)


@pytest.mark.parametrize("rotary", [{}, PARTIAL, {"rotary": "none"}], ids=["full", "partial", "none"])
@pytest.mark.parametrize("variant", ["Q=K", "K=V", "K=V GQA-2", "Q=K=V", "K=V on_read", "Q=K=V kept"])
def test_diagonal_scales_of_one_are_plain_sharing(variant, rotary):
    if "kept" in variant and rotary != PARTIAL:
        rotary = PARTIAL | {"rotary_dims": 2}
    plain = copied(variant, rotary)
    scaled = copied(f"{variant} diagonal", rotary, ones_beside(plain, f"{variant} diagonal", rotary))
    x = plain.inputs()
    assert_same_outputs(plain, scaled, x, plain.parameters)
    scales = [p for n, p in scaled.parameters.items() if n.endswith("_scale")]
    with torch.no_grad():
        for scale in scales:
            before = scaled.fast(x)
            scale.mul_(1.5)
            assert (scaled.fast(x) - before).abs().max() > 1e-3
    assert len(scales) == 2 * (1 + ("Q=K" in variant) + ("K=V" in variant))


def ones_beside(plain, variant, rotary):
    """The weights of a plain layer, and ones for the scales that it does not have."""
    names = copied(variant, rotary).parameters
    return {n: plain.parameters[n].detach() if n in plain.parameters else torch.ones_like(p) for n, p in names.items()}


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2", "K=V decoupled", "Q=K=V"])
def test_full_rank_is_a_full_matrix(variant):
    # W = W · 1: the smaller of the two sides is a rank that loses nothing.
    fields = APART if "decoupled" in variant else {"block": "paper"}
    plain = copied(variant, fields)
    state = {}
    for name, p in plain.parameters.items():
        state[name] = p.detach()
        layer, module, kind = name.split(".")
        if module in ("q_proj", "k_proj", "v_proj"):
            state[f"{layer}.{module}.up.{kind}"] = p.detach()
            state[f"{layer}.{module}.down.weight"] = torch.eye(WIDTH, dtype=torch.float64)
    factored = copied(f"{variant} rank-{WIDTH}", fields, state)
    assert any(".down." in n for n in factored.parameters)
    assert_same_outputs(plain, factored, plain.inputs(), [n for n in plain.parameters if n in factored.parameters])


def test_a_low_rank_is_a_low_rank():
    layers = chain("QKV rank-3")
    for name in ("q_proj", "k_proj", "v_proj"):
        module = layers.layers[0].projections.get_submodule(name)
        assert torch.linalg.matrix_rank(module.up.weight @ module.down.weight) == 3


@pytest.mark.parametrize("name", ["QKV, sinks True", "MLA, rotary_dims 8, latent_dims 24, sinks True"])
def test_a_sink_that_never_scores_changes_nothing(name):
    with_sinks, without = chain(name), chain(name, sinks=False)
    state = {n: p.detach() for n, p in with_sinks.parameters.items()}
    with torch.no_grad():
        for n, p in without.parameters.items():
            p.copy_(state[n])
        x = with_sinks.inputs()
        assert (with_sinks.fast(x) - without.fast(x)).abs().max() > 0.1
        for layer in with_sinks.layers:
            layer.projections.sinks.fill_(-1e9)
        torch.testing.assert_close(with_sinks.fast(x), without.fast(x), rtol=0, atol=1e-12)


def test_a_soft_cap_far_out_changes_nothing_and_a_near_one_bounds_scores():
    plain = copied("QKV", {"block": "paper"})
    far, near = (copied("QKV", {"block": "paper", "softcap": cap}, of=plain) for cap in (1e7, 0.01))
    x = plain.inputs()
    torch.testing.assert_close(far.fast(x), plain.fast(x), rtol=0, atol=1e-8)
    even = copied("QKV", {"block": "paper", "scale_exponent": 0.0}, of=plain)
    with torch.no_grad():  # all scores are almost equal, as with queries of 0
        for layer in even.layers:
            layer.projections.q_proj.weight.zero_()
            layer.projections.q_proj.bias.zero_()
        assert (near.fast(x) - even.fast(x)).abs().max() < 0.02 * (even.fast(x) - x).abs().max()
        assert (near.fast(x) - plain.fast(x)).abs().max() > 0.1


def test_a_window_over_everything_changes_nothing():
    for name in (n for n in EVERY if "window" in EVERY[n]):
        narrow, wide = chain(name), chain(name, window=7)
        without = chain(name, window=None, layer_pattern="")
        x = narrow.inputs()
        torch.testing.assert_close(wide.fast(x), without.fast(x), rtol=0, atol=1e-12)
        assert (narrow.fast(x) - without.fast(x)).abs().max() > 0.1
