"""Weights as they are read, against what the models make of their inputs."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from every_variant import KINDS, every_model
from explained_layers import FAMILIES, family_model, own_model
from small_encoders import encoder_of
from small_models import small_config, small_model
from twofold.attention.latent import LatentProjections
from twofold.attention.rotary import rotation
from twofold.attention.scores import keys_and_values
from twofold.cache.kept import KeptRows
from twofold.explain.layer_weights import folded
from twofold.explain.weights import read_weights
from twofold.models.decoder import TwofoldForCausalLM

T = 7
LINEAR = tuple(name for name in KINDS if "nonlinear" not in name)


class OnlyScale(nn.Module):
    """A norm of vectors without its division, which is no linear map."""

    def __init__(self, norm, scale=True):
        super().__init__()
        self.weight = norm.weight if scale else None

    def forward(self, x):
        return x if self.weight is None else x * self.weight


def linearised(seam):
    """The seam with the norms inside it no longer dividing: between two matrices their scale stays."""
    for name, scale in (("latent_norm", True), ("content_norm", False), ("q_norm", False), ("k_norm", False)):
        if isinstance(norm := getattr(seam, name, None), nn.RMSNorm):
            setattr(seam, name, OnlyScale(norm, scale))
    return seam


def applied(weight, bias, x_TM):
    made = torch.einsum("hdm,tm->htd", weight.double(), x_TM)
    return made if bias is None else made + bias.double()[:, None]


def scores_and_output(layer, x_TM):
    """q·k of every query head [H, T, T] and what its values add [T, M], unturned."""
    q_HTD = applied(layer.q_HDM, layer.q_bias_HD, x_TM)
    k_GTD = applied(layer.k_GDM, layer.k_bias_GD, x_TM)
    v_GTD = applied(layer.v_GDM, layer.v_bias_GD, x_TM)
    k_HTD, v_HTD = (rows.repeat_interleave(layer.group, dim=0) for rows in (k_GTD, v_GTD))
    return q_HTD @ k_HTD.mT, torch.einsum("hmd,htd->tm", layer.o_HMD.double(), v_HTD)


def by_the_seam(query_seam, row_seam, x_TM):
    """The same of the modules themselves, at position 0, where rotary turns nothing."""
    sizes = row_seam.sizes
    by = (
        rotation(torch.zeros(1, T, dtype=torch.long), sizes.rotary_dims, 1e4, x_TM.dtype) if sizes.rotary_dims else None
    )
    made = query_seam(x_TM[None], by, query_seam.sizes.borrows)
    rows, shared = row_seam.rows_of(x_TM[None], by)
    kept = KeptRows(rows.transpose(1, 2), shared)
    latent = isinstance(row_seam, LatentProjections)
    key_BGTD, value_BGTD = row_seam.expanded(kept) if latent else keys_and_values(row_seam.layout, kept)
    heads = query_seam.sizes.heads
    key_BHTD, value_BHTD = (of.repeat_interleave(heads // of.shape[1], dim=1) for of in (key_BGTD, value_BGTD))
    scores_HTT = (made.query_BTHD.transpose(1, 2) @ key_BHTD.mT)[0]
    output_TM = query_seam.output(value_BHTD.transpose(1, 2), by)[0]
    bias = query_seam.o_proj.bias
    return scores_HTT, output_TM if bias is None else output_TM - bias


def row_owner(model, layer):
    return model.config.architecture.row_owners[layer]


@pytest.mark.parametrize("name", LINEAR)
def test_every_variant_computes_what_its_weights_say(name):
    torch.manual_seed(1)
    model = every_model(name)
    x_TM = torch.randn(T, model.config.hidden_size, dtype=torch.float64)
    blocks = model.model.layers
    for layer in read_weights(model):
        seams = blocks[layer.layer], blocks[row_owner(model, layer.layer)]
        query_seam, row_seam = (linearised(block.attention.projections) for block in seams)
        with torch.no_grad():
            wanted = by_the_seam(query_seam, row_seam, x_TM)
        for got, want in zip(scores_and_output(layer, x_TM), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("variant", ["QKV", "GQA-2", "Q=K", "K=V", "Q=K=V"])
def test_encoders_compute_what_their_weights_say(variant, order):
    torch.manual_seed(1)
    model = encoder_of("features", "positions", variant, norm_order=order)
    x_TM = torch.randn(T, model.config.hidden_size, dtype=torch.float64)
    for layer in read_weights(model):
        seam = model.model.layers[layer.layer].attention.projections
        with torch.no_grad():
            wanted = by_the_seam(seam, seam, x_TM)
        for got, want in zip(scores_and_output(layer, x_TM), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
        assert (layer.row_norm is None) == (order == "post")


@pytest.mark.parametrize("block", ["paper", "modern"])
def test_folded_weights_read_what_the_norm_divides(block):
    torch.manual_seed(1)
    model = small_model("GQA-2", block, "full")
    stream_TM = torch.randn(T, model.config.hidden_size, dtype=torch.float64)
    for layer, decoder_block in zip(read_weights(model), model.model.layers, strict=True):
        with torch.no_grad():
            normed_TM = decoder_block.attention_norm(stream_TM)
        ours = stacked(folded(layer), divided(stream_TM, centred=block == "paper"))
        torch.testing.assert_close(ours, stacked(layer, normed_TM), rtol=1e-5, atol=1e-5)


def test_a_layer_that_reads_anothers_rows_folds_the_others_norm_into_them():
    first, second = read_weights(every_model("K=V CLA-2, partial, rotary_dims 4"))
    assert torch.equal(folded(first).k_GDM, folded(second).k_GDM)
    assert not torch.equal(first.query_norm.scale_M, second.query_norm.scale_M)


def test_a_linear_recurrence_has_weights_like_any_other():
    torch.manual_seed(1)
    model = small_model("K=V GQA-2 linear", "modern", "none")
    x_TM = torch.randn(T, model.config.hidden_size, dtype=torch.float64)
    for layer, block in zip(read_weights(model), model.model.layers, strict=True):
        seam = block.attention.projections
        with torch.no_grad():
            wanted = by_the_seam(seam, seam, x_TM)
        for got, want in zip(scores_and_output(layer, x_TM), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


def test_fused_matrices_read_as_separate_ones():
    model = TwofoldForCausalLM(small_config("K=V GQA-2", "paper", "none", fused_projections=True)).eval()
    x_TM = torch.randn(T, model.config.hidden_size)
    layer = next(read_weights(model))
    made = model.model.layers[0].attention.projections.qkv_proj(x_TM)
    ours = [applied(layer.q_HDM, layer.q_bias_HD, x_TM.double()), applied(layer.k_GDM, layer.k_bias_GD, x_TM.double())]
    ours_T = torch.cat([part.transpose(0, 1).flatten(1) for part in ours], dim=1)
    torch.testing.assert_close(ours_T.float(), made, rtol=1e-5, atol=1e-6)
    assert layer.v_GDM is layer.k_GDM


def captured(model, block, parts):
    """The input of the block's attention without batch, of its projections, and of its norm, and what they make."""
    seen = {}

    def hook(name):
        return lambda module, given, made: seen.__setitem__(name, (given[0][0].double(), made[0].double()))

    handles = [block.get_submodule(part).register_forward_hook(hook(part)) for part in parts]
    with torch.no_grad():
        model(torch.randint(3, 80, (1, T)))
    for handle in handles:
        handle.remove()
    return seen


def family_parts(model_type):
    attention, output, norm = {
        "gpt2": ("attn", "c_proj", "ln_1"),
        "opt": ("self_attn", "out_proj", "self_attn_layer_norm"),
    }.get(model_type, ("self_attn", "o_proj", "input_layernorm"))
    made = ["c_attn"] if model_type == "gpt2" else ["q_proj", "k_proj", "v_proj"]
    return [f"{attention}.{name}" for name in made], f"{attention}.{output}", norm


def family_blocks(model):
    base = model.base_model
    return getattr(base, "h", None) or getattr(base, "layers", None) or base.decoder.layers


@pytest.mark.parametrize("model_type", FAMILIES)
def test_families_compute_what_their_weights_say(model_type):
    """The projections' outputs, the output's, and through folded weights the same from the norm's own input."""
    torch.manual_seed(2)
    model = family_model(model_type)
    projections, output, norm = family_parts(model_type)
    for layer, block in zip(read_weights(model), family_blocks(model), strict=True):
        seen = captured(model, block, [*projections, output, norm])
        x_TM = seen[projections[0]][0]
        made = torch.cat([seen[name][1] for name in projections], dim=-1)
        torch.testing.assert_close(stacked(layer, x_TM), made, rtol=1e-5, atol=1e-5 * float(made.abs().max()))
        read, added = seen[output]
        bias = block.get_submodule(output).bias
        read_THD = read.unflatten(-1, (len(layer.o_HMD), -1))
        ours = torch.einsum("hmd,thd->tm", layer.o_HMD.double(), read_THD) + (0 if bias is None else bias.double())
        torch.testing.assert_close(ours, added, rtol=1e-5, atol=1e-5 * float(added.abs().max()))
        stream_TM = divided(seen[norm][0], centred=model_type in ("gpt2", "opt"))
        torch.testing.assert_close(
            stacked(folded(layer), stream_TM), made, rtol=1e-4, atol=1e-4 * float(made.abs().max())
        )


def stacked(layer, x_TM):
    roles = ((layer.q_HDM, layer.q_bias_HD), (layer.k_GDM, layer.k_bias_GD), (layer.v_GDM, layer.v_bias_GD))
    return torch.cat([applied(*role, x_TM).transpose(0, 1).flatten(1) for role in roles], dim=-1)


def divided(x_TM, *, centred):
    """x over its length as the norm measures it; what lies along (1, …, 1) is left in, for the weights to ignore."""
    measured = x_TM - x_TM.mean(-1, keepdim=True) if centred else x_TM
    return x_TM / (measured.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize(("variant", "same"), [("Q=K", "qk"), ("K=V", "kv"), ("Q=K=V", "qkv"), ("QKV", "")])
def test_shared_roles_are_one_tensor_before_and_after_folding(variant, same):
    """Also where a model in float64 is converted."""
    layer = next(read_weights(small_model(variant, "paper", "none")))
    for each in (layer, folded(layer)):
        roles = {"q": each.q_HDM, "k": each.k_GDM, "v": each.v_GDM}
        for a in roles:
            for b in roles:
                is_same = roles[a] is roles[b]
                assert is_same == (a == b or (a in same and b in same))
    assert folded(layer).row_norm is None


def test_a_norm_behind_the_attention_is_not_read_through():
    layer = next(read_weights(family_model("opt", do_layer_norm_before=False)))
    assert (layer.query_norm, layer.row_norm) == (None, None)
    assert folded(layer).q_HDM is layer.q_HDM


def test_float32_weights_are_views_of_the_model():
    model = own_model("QKV")
    layer = next(read_weights(model))
    seam = model.model.layers[0].attention.projections
    assert layer.k_GDM.data_ptr() == seam.k_proj.weight.data_ptr()
    assert layer.o_HMD.data_ptr() == seam.o_proj.weight.data_ptr()


def test_layers_may_be_chosen():
    assert [layer.layer for layer in read_weights(family_model("llama"), (2, 0))] == [2, 0]


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_is_not_there(layer):
    with pytest.raises(ValueError, match=f"no layer {layer} in a model of 2"):
        read_weights(own_model("QKV"), (0, layer))


def test_models_that_cannot_be_read():
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 7}
    with pytest.raises(ValueError, match=r"'bert' model cannot be read.*llama"):
        read_weights(BertModel(BertConfig(vocab_size=11, **sizes)))
    with pytest.raises(ValueError, match="NonlinearQuery, which is no linear map"):
        next(read_weights(every_model("QKV nonlinear-WQ")))
    quantised = family_model("llama")
    quantised.model.layers[0].self_attn.k_proj.weight = nn.Parameter(
        torch.zeros(32, 48, dtype=torch.int8), requires_grad=False
    )
    with pytest.raises(ValueError, match=r"k_proj is a Parameter of torch.int8"):
        next(read_weights(quantised))
