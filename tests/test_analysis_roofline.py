"""Decode steps against counts by hand, by brute force and by real models; times by identities."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from every_variant import EVERY, every_config
from twofold.analysis import costs
from twofold.analysis.decoding import LONGEST, decode_work, longest_context, prefill_work, weights_read
from twofold.analysis.device_plan import Use, assumptions, on_device
from twofold.analysis.devices import Device, find_devices
from twofold.analysis.roofline import Work, price_per_million, roof
from twofold.models.architecture import Architecture
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.presets import architecture

SIZES = {"layers": 3, "width": 14, "heads": 6, "mlp": 17, "vocab": 29, "positions": 53, "head_dim": 10}
DEVICE = Device(
    name="paper tiger", memory_gb=7, bandwidth_gb_s=13, peak_tflops={"float32": 0.5, "bfloat16": 1.7}, source="made up"
)


def test_a_step_counted_by_hand():
    # One layer, width 8, two heads of 4, MLP 16, vocabulary 32, no biases, tied.
    model = Architecture(layers=1, width=8, heads=2, mlp=16, vocab=32, positions=64, variant="K=V MQA")
    work = decode_work(model, 11, "bfloat16", batch=3)
    matrices = 8 * 8 + 8 * 4 + 8 * 8 + 3 * 8 * 16 + 32 * 8  # q, k, o; gate, up, down; head
    norms = 3 * 8
    assert work.weight_bytes == 2 * (matrices + norms)
    assert work.row_bytes == 3 * 11 * 4 * 2  # sequences, tokens, one vector of 4, bytes
    assert work.macs == 3 * (matrices + 2 * 11 * (4 + 4))  # heads, tokens, score and sum
    assert work.flops == 2 * work.macs
    assert work.intensity == work.flops / (work.weight_bytes + work.row_bytes)


@pytest.mark.parametrize("name", [name for name in EVERY if "tied-" not in name])
def test_weights_and_multiplications_are_those_of_a_real_model(name):
    with torch.device("meta"):
        model = TwofoldForCausalLM(every_config(name))
    arch, tokens, batch = model.config.architecture, 23, 5
    work = decode_work(arch, tokens, "float32", batch)
    matrices = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    read = sum(costs.visible_tokens(arch, layer, tokens) * of_a_row(arch.at(layer)) for layer in range(arch.layers))
    assert work.macs == batch * (matrices + read)
    tables = [model.get_input_embeddings()] * (not arch.tied)
    tables += [part for place, part in model.named_modules() if place.endswith("embed_positions")]
    looked_up = sum(parameter.numel() for part in tables for parameter in part.parameters())
    assert work.weight_bytes == 4 * (sum(parameter.numel() for parameter in model.parameters()) - looked_up)


def of_a_row(arch):
    """Multiply-accumulates of one row: its scores and sum for every query head, or a key and a value made first."""
    if str(arch.variant).endswith("MLA on_read") and arch.rotary != "none":
        made = {"GQA-2": 2, "GQA-3": 3}.get(str(arch.variant).split()[0], arch.heads)
        return 2 * made * arch.head_dim * arch.latent_width + 2 * arch.heads * arch.head_dim
    return arch.heads * (arch.row_layout.key_dim + arch.row_layout.value.width)


def test_keys_under_a_norm_are_made_of_latents_where_nothing_turns_too():
    normed, turned, plain = (
        Architecture(**SIZES, variant="GQA-2 MLA on_read", latent_dims=7, **fields)
        for fields in ({"rotary": "none", "qk_norm": True}, {"rotary": "full"}, {"rotary": "none"})
    )
    macs = [decode_work(model, 23, "float32").macs for model in (normed, turned, plain)]
    assert macs[0] == macs[1] != macs[2]


def test_layers_that_share_rows_or_matrices_read_them_again():
    plain, rows, matrices = (
        Architecture(**{**SIZES, "layers": 4}, variant=variant) for variant in ("K=V", "K=V CLA-2", "K=V tied-2")
    )
    assert 2 * rows.cache_bytes(7, "float32") == plain.cache_bytes(7, "float32")
    reading = [decode_work(model, 7, "float32") for model in (plain, rows, matrices)]
    assert reading[1].row_bytes == reading[0].row_bytes == plain.cache_bytes(7, "float32")
    assert reading[2].weight_bytes == reading[0].weight_bytes
    assert weights_read(matrices) > costs.parameters(matrices)["total"] - costs.parameters(matrices)["positions"]


def test_windows_are_read_and_computed_to_their_edge():
    model = Architecture(**SIZES, window=5, layer_pattern="SSL")
    row = 2 * 6 * 10 * 4
    for tokens in (4, 5, 6, 41):
        assert decode_work(model, tokens, "float32").row_bytes == row * (2 * min(tokens, 5) + tokens)
    more = decode_work(model, 41, "float32").macs - decode_work(model, 40, "float32").macs
    assert more == 6 * 2 * 10  # of the full layer alone


def test_blocks_keep_all_rows_and_read_three():
    model = Architecture(**SIZES, window=4, layer_pattern="B")
    assert decode_work(model, 30, "float32").row_bytes == decode_work(model, 12, "float32").row_bytes
    assert model.cache_bytes(30, "float32") > model.cache_bytes(12, "float32")


def test_a_recurrent_state_is_read_and_written_whatever_the_context():
    model = Architecture(**SIZES, variant="K=V linear")
    works = [decode_work(model, tokens, "float32", 3) for tokens in (1, 50)]
    assert works[0] == works[1]
    assert works[0].row_bytes == 2 * model.cache_bytes(1, "float32", 3)


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2", "MQA"])
def test_a_sequence_decoded_token_by_token_computes_what_is_visible(variant):
    # Over all steps the causal half; prefill counts the masked half as well.
    model = Architecture(**SIZES, variant=variant)
    tokens = 19
    steps = sum(decode_work(model, n, "float32").macs for n in range(1, tokens + 1))
    per_pair = 3 * 6 * (10 + 10)  # layers, heads, key and value
    whole = prefill_work(model, tokens, "float32").macs
    head = 14 * 29
    assert whole - steps == per_pair * (tokens**2 - tokens * (tokens + 1) // 2) - (tokens - 1) * head


def test_a_prefill_writes_the_cache_and_needs_one_head():
    model = Architecture(**SIZES)
    work = prefill_work(model, 31, "bfloat16", 3)
    assert work.row_bytes == model.cache_bytes(31, "bfloat16", 3)
    counted = costs.macs(model, 31)
    assert work.macs == 3 * (counted["total"] - 30 * 14 * 29)


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers(1, 10**13), st.floats(0.01, 1))
def test_times_by_identities(weights, rows, macs, efficiency):
    work = Work(weights, rows, macs)
    time = roof(work, DEVICE, "bfloat16")
    faster = DEVICE.model_copy(update={"bandwidth_gb_s": 26})
    assert roof(work, faster, "bfloat16").memory_seconds == pytest.approx(time.memory_seconds / 2)
    assert roof(work, faster, "bfloat16").compute_seconds == time.compute_seconds
    assert time.seconds == max(work.bytes / 13e9, 2 * macs / 1.7e12)
    assert (time.bound == "compute") == (work.intensity > 1.7e12 / 13e9) or time.memory_seconds == time.compute_seconds
    assert roof(work, DEVICE, "bfloat16", efficiency).seconds == pytest.approx(time.seconds / efficiency)
    assert roof(work, DEVICE, "float32").compute_seconds == pytest.approx(time.compute_seconds * 1.7 / 0.5)


def test_prices_are_of_a_million_tokens():
    assert price_per_million(3.6, 1000) == pytest.approx(1.0)  # 3.6 million tokens an hour
    assert price_per_million(7.2, 500) == pytest.approx(4.0)
    assert price_per_million(0, 500) == 0
    for price in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="price per hour"):
            price_per_million(price, 1)


@pytest.mark.parametrize("efficiency", [0, -0.5, 1e-320, 1.01, float("nan")])
def test_an_efficiency_is_a_share(efficiency):
    with pytest.raises(ValueError, match=r"at least 0\.001 and at most 1"):
        roof(Work(1, 1, 1), DEVICE, "float32", efficiency)


@pytest.mark.parametrize("variant", ["QKV", "K=V MQA"])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_what_fits_fits_and_one_more_does_not(variant, window, dtype):
    model = Architecture(**SIZES, variant=variant, window=window, layer_pattern="SL" if window else "")
    device = DEVICE.model_copy(update={"memory_gb": 40e-6})  # 40,000 bytes
    plan = on_device(model, device, Use(17, 3, dtype))
    weights = costs.weight_bytes(model, dtype)

    def needed(tokens, batch):
        return weights + model.cache_bytes(tokens, dtype, batch)

    assert needed(17, plan.largest_batch) <= 40_000 < needed(17, plan.largest_batch + 1)
    assert plan.largest_context is not None
    assert needed(plan.largest_context, 3) <= 40_000 < needed(plan.largest_context + 1, 3)
    assert plan.fits == (plan.largest_batch >= 3)


def test_a_context_without_a_limit_has_none_and_a_full_memory_has_zero():
    windowed = Architecture(**SIZES, window=5, layer_pattern="S")
    assert on_device(windowed, DEVICE, Use(17)).largest_context is None
    tiny = DEVICE.model_copy(update={"memory_gb": 1e-6})
    plan = on_device(windowed, tiny, Use(17, price_per_hour=1.0))
    assert (plan.largest_batch, plan.largest_context, plan.fits, plan.price_per_million_tokens) == (0, 0, False, None)
    assert longest_context(lambda tokens: tokens, LONGEST - 1) == LONGEST - 1


def test_the_articles_scenario():
    # 1.2B, 32K tokens, batch 32, bfloat16: 176 GiB of QKV's rows do not fit a GPU of 80 GB, MQA's 5.5 GiB do.
    h100 = find_devices(["H100"])[0]
    use = Use(32_768, 32, price_per_hour=2.0)
    models = [
        architecture("1.2B", variant=v, rotary="full", positions=32_768) for v in ("QKV", "K=V", "MQA", "K=V MQA")
    ]
    qkv, kv, mqa, both = (on_device(model, h100, use) for model in models)
    assert [plan.cache_bytes / 2**30 for plan in (qkv, kv, mqa, both)] == [176, 88, 5.5, 2.75]
    assert [plan.fits for plan in (qkv, kv, mqa, both)] == [False, False, True, True]
    assert {plan.decode_time.bound for plan in (qkv, kv, mqa, both)} == {"memory"}
    assert mqa.decode_time.seconds == pytest.approx((mqa.decode.weight_bytes + 5.5 * 2**30) / 3.35e12)
    assert mqa.price_per_million_tokens == pytest.approx(2.0 / (32 / mqa.decode_time.seconds * 3600) * 1e6)
    assert qkv.price_per_million_tokens is None
    told = assumptions(h100, use)
    for words in ("3,350 GB/s (10⁹ bytes)", "989.4 TFLOPS dense for bfloat16", "80 GB", "the whole roof", h100.source):
        assert words in told
    assert "computed in float32" in assumptions(find_devices(["Apple M2"])[0], use)
    assert "50 % of the roof" in assumptions(h100, Use(1, efficiency=0.5))


@pytest.mark.parametrize(("context", "batch"), [(0, 1), (1, 0)])
def test_sizes_below_one_are_refused(context, batch):
    with pytest.raises(ValueError, match="must be at least 1"):
        decode_work(Architecture(**SIZES), context, "float32", batch)
