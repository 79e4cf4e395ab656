"""The encoder's equations, written out head by head and number by number; nothing of it is shared with the model."""

import math

import torch
from torch import nn


def sines(length, dims, period):
    """Number p, c: the sine of p · 10000^(−c / period), or for an odd c the cosine of its neighbour's angle."""
    made = torch.zeros(length, dims, dtype=torch.float64)
    for p in range(length):
        for c in range(dims):
            angle = p * 10_000 ** (-(c - c % 2) / period)
            made[p, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return made


def turned(x_TD):
    """Rotary at positions 0, 1, 2 …: dims i and i + D/2 are one complex number."""
    length, dims = x_TD.shape
    angle_TF = torch.arange(length).double()[:, None] * 10_000 ** (-torch.arange(dims // 2).double() * 2 / dims)
    made = torch.complex(x_TD[:, : dims // 2], x_TD[:, dims // 2 :]) * torch.polar(torch.ones_like(angle_TF), angle_TF)
    return made, angle_TF


def term_scores(scores_TT, parameters, kind, head):
    """The scores of one head after the term, from the published construction where there is one."""
    length = scores_TT.shape[0]
    if kind == "+":
        channels = parameters["position_term.weight"].shape[1]
        half = 2 * math.ceil(channels / 4)
        sinusoid_TTC = torch.cat(
            [
                sines(length, half, half)[:, None].expand(-1, length, -1),
                sines(length, channels - half, half)[None].expand(length, -1, -1),
            ],
            dim=-1,
        )
        over_channels_TTC = scores_TT[..., None] + sinusoid_TTC
        return (over_channels_TTC * parameters["position_term.weight"][0]).sum(-1) + parameters["position_term.bias"]
    if kind == "+temperature":
        return scores_TT * parameters["position_term.scale"]
    if kind == "+key-bias":
        weight = parameters["position_term.weight"][0]
        return scores_TT + sines(length, len(weight), 6) @ weight
    if kind == "+relative":
        offset = torch.arange(length)[None] - torch.arange(length)[:, None]  # shorter than 12, so beyond 7 one bucket
        bucket = offset.abs().clamp(max=8) + 16 * (offset > 0)
        return scores_TT + parameters["position_term.weight"][head][bucket]
    return scores_TT


def written_out(model, ids):
    """Hidden states [T, M] of one sequence from the equations, head by head."""
    config, weights = model.config, dict(model.model.named_parameters())
    sharing, _, kind = config.variant.rpartition(" ") if "+" in config.variant else (config.variant, "", "")
    x_TM = weights["embed_tokens.weight"][ids]
    if config.positions == "sinusoidal":
        x_TM = x_TM + sines(len(ids), config.hidden_size, config.hidden_size)
    if config.positions == "learned":
        x_TM = x_TM + weights["embed_positions.weight"][: len(ids)]
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        x_TM = block(x_TM, own, config, sharing, kind)
    return normed(x_TM, weights, "norm") if config.norm_order == "pre" else x_TM


def head_written_out(model, hidden_TM):
    """Logits [T, classes] of hidden states."""
    weights = dict(model.classifier.named_parameters())
    return linear(normed(linear(hidden_TM, weights, "0"), weights, "1").relu(), weights, "4")


def block(x_TM, own, config, sharing, kind):
    def mlp(y_TM):
        act = getattr(nn.functional, config.hidden_act)
        return linear(act(linear(y_TM, own, "mlp.up_proj")), own, "mlp.down_proj")

    if config.norm_order == "pre":
        x_TM = x_TM + attention(normed(x_TM, own, "attention_norm"), own, config, sharing, kind)
        return x_TM + mlp(normed(x_TM, own, "mlp_norm"))
    x_TM = normed(x_TM + attention(x_TM, own, config, sharing, kind), own, "attention_norm")
    return normed(x_TM + mlp(x_TM), own, "mlp_norm")


def attention(x_TM, own, config, sharing, kind):
    seam = {name.removeprefix("attention.projections."): value for name, value in own.items() if "projections" in name}
    heads, dims = config.num_attention_heads, config.head_dim
    kv_heads = 2 if "GQA-2" in sharing else 1 if "MQA" in sharing else heads
    read = []
    for head in range(heads):
        group = head * kv_heads // heads
        query, key, value = (
            linear(x_TM, seam, role if f"{role}.weight" in seam else "k_proj")[:, part * dims :][:, :dims]
            for role, part in (("q_proj", head), ("k_proj", group), ("v_proj", group))
        )
        if config.positions == "rotary":
            (query_c, angle_TF), (key_c, _) = turned(query), turned(key)
            scores_TT = (query_c @ key_c.conj().T).real / dims**0.5
            weights_TT = term_scores(scores_TT, own, kind, head).softmax(-1)
            if "K=V" in sharing:  # read turned, and turned back
                back = (weights_TT.to(key_c.dtype) @ turned(value)[0]) * torch.polar(
                    torch.ones_like(angle_TF), -angle_TF
                )
                read.append(torch.cat([back.real, back.imag], dim=-1))
                continue
        else:
            weights_TT = term_scores(query @ key.T / dims**0.5, own, kind, head).softmax(-1)
        read.append(weights_TT @ value)
    return linear(torch.cat(read, dim=-1), seam, "o_proj")


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def normed(x, weights, name):
    return nn.functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])
