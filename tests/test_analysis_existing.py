"""Steps of published models: equal to ours where the model is the same, and experts counted as they are picked."""

import pytest
import torch

from tiny_published import tiny_config
from twofold.analysis.decoding import decode_work, prefill_work
from twofold.analysis.devices import find_devices
from twofold.analysis.existing import plan_existing
from twofold.analysis.published_decoding import published_decode_work, published_prefill_work, weights_of
from twofold.analysis.published_source import read, without_storage
from twofold.models.architecture import Architecture

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 18,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 17,
    "vocab_size": 29,
    "max_position_embeddings": 53,
}
NORMS = (2 * 3 + 1) * 18
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}


def weights(config):
    return weights_of(without_storage(config))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("batch", [1, 5])
def test_llama_is_our_modern_block(tied, batch):
    config = {**LLAMA, "tie_word_embeddings": tied}
    ours = Architecture(
        layers=3, width=18, heads=6, head_dim=10, mlp=17, vocab=29, positions=53, variant="GQA-2", tied=tied
    )
    found = published_decode_work(read(config), weights(config), 23, "bfloat16", batch)
    expected = decode_work(ours, 23, "bfloat16", batch)
    assert (found.weight_bytes, found.row_bytes) == (expected.weight_bytes, expected.row_bytes)
    assert found.macs == expected.macs + batch * NORMS  # where each parameter counts as one
    found = published_prefill_work(read(config), weights(config), 23, "bfloat16", batch)
    expected = prefill_work(ours, 23, "bfloat16", batch)
    assert (found.weight_bytes, found.row_bytes) == (expected.weight_bytes, expected.row_bytes)
    assert found.macs == expected.macs + batch * 23 * NORMS


def test_a_token_uses_its_experts_and_a_batch_reads_those_that_any_picks():
    found = weights(MIXTRAL)
    one = 3 * 18 * 17
    assert (found.experts, found.expert_count, found.picked) == (3 * 5 * one, 5, 2)
    dense = found.total - found.looked_up - found.experts
    assert found.used == pytest.approx(dense + 3 * 2 * one)
    assert found.read(1) == pytest.approx(found.used)
    expected = _mean_of_picked(5, 2, 3)
    assert found.read(3) == pytest.approx(dense + 3 * expected * one)
    assert found.read(10_000) == pytest.approx(dense + found.experts)


def _mean_of_picked(experts, picked, tokens):
    """How many experts some token picks, over all ways in which each token can pick them."""
    from itertools import combinations, product

    ways = list(product(combinations(range(experts), picked), repeat=tokens))
    return sum(len(set().union(*way)) for way in ways) / len(ways)


def test_dense_models_use_all_they_have():
    found = weights({**LLAMA, "tie_word_embeddings": True})
    assert found.used == found.read(1) == found.read(7) == found.total


@pytest.mark.parametrize("model_type", ["mistral", "gemma3n_text", "qwen3_next", "deepseek_v3", "deepseek_v4"])
def test_layers_read_what_they_see(model_type):
    config = tiny_config(model_type)
    cache = read(config)
    for tokens in (3, 23, 40):
        work = published_decode_work(cache, weights(config), tokens, "float32", 2)
        reading = 0
        for layer in cache.layers:
            seen = cache.layers[layer.owner].needed if layer.owner is not None else layer.needed
            reading += sum(kept.bytes(tokens, "float32", 2) * (1 + kept.is_state) for kept in seen)
        assert work.row_bytes == reading >= cache.needed_bytes(tokens, "float32", 2)


def test_rows_that_layers_reuse_are_read_again():
    cache = read(tiny_config("gemma3n_text"))
    assert any(layer.owner is not None for layer in cache.layers)
    config = tiny_config("gemma3n_text")
    work = published_decode_work(cache, weights(config), 23, "float32")
    assert work.row_bytes > cache.needed_bytes(23, "float32")


def test_a_latent_is_multiplied_as_it_is_stored():
    config = tiny_config("deepseek_v3")
    cache, found = read(config), weights(config)
    layer = cache.layers[0]
    row = layer.needed[0].layout
    per_token = [published_decode_work(cache, found, tokens, "float32").macs for tokens in (20, 21)]
    assert per_token[1] - per_token[0] == len(cache.layers) * layer.heads * (row.key_dim + row.value.width)
    assert row.key_dim > layer.key_dim or row.value.width != layer.value_dim


def test_the_plan_has_every_way_on_every_device_and_says_what_is_fixed():
    devices = find_devices(["H100", "Raspberry Pi 5"])
    found = plan_existing(MIXTRAL, devices=devices, context=40, batch=3, price_per_hour=2.0)
    names = [one.name for one in found.plan.figures]
    assert [(one.name, one.device.name) for one in found.on_devices] == [
        (name, device.name) for device in devices for name in names
    ]
    told = found.as_dict()
    assert all(len(figures["devices"]) == 2 for figures in told["figures"])
    assert told["figures"][0]["devices"][0]["price_per_million_tokens"] > 0
    assert "means training" in found.statement
    assert "3 × 40 tokens need" in found.statement
    assert "devices" not in plan_existing(MIXTRAL).as_dict()["figures"][0]


def test_what_transformers_stores_decides_what_fits():
    config = tiny_config("gemma4_text")
    found = plan_existing(config, devices=find_devices(["L4"]), context=23, dtype="float32")
    by_name = {one.name: one for one in found.on_devices}
    needed, stored = by_name["needed"], by_name["transformers stores"]
    assert stored.cache_bytes > needed.cache_bytes
    assert stored.decode.row_bytes * needed.cache_bytes == needed.decode.row_bytes * stored.cache_bytes
    assert stored.decode.weight_bytes == needed.decode.weight_bytes
    assert "transformers stores" in found.statement


def test_devices_need_weights_that_can_be_counted():
    config = {"model_type": "new", "num_layers": 3, "n_head": 2, "hidden_size": 8, "max_seq_len": 40}
    with pytest.raises(ValueError, match="could not be counted, and every step reads them: leave --device out"):
        plan_existing(config, devices=find_devices(["L4"]))
    assert plan_existing(config).plan.parameters is None


def test_counting_takes_no_storage():
    model = without_storage(LLAMA)
    assert {parameter.device for parameter in model.parameters()} == {torch.device("meta")}
