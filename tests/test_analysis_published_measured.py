"""What is said of transformers' cache against real caches: every checked model type, exact to the byte."""

import pytest
import torch
from transformers import CONFIG_MAPPING

from tiny_published import MIXED, cached, shape_bytes, storage_bytes, tiny_config
from twofold.analysis.published_families import CHECKED
from twofold.analysis.published_source import count_parameters, read

TOKENS = 23


def differences(config: dict, tokens: int, dtype: str = "float32") -> int:
    cache = cached(config, tokens, dtype=getattr(torch, dtype))
    return storage_bytes(cache) - read(config).stored_bytes(tokens, dtype, batch=2)


@pytest.mark.parametrize("model_type", sorted(CHECKED))
def test_stored_bytes_are_those_of_a_real_cache(model_type):
    config = tiny_config(model_type)
    assert differences(config, TOKENS) == 0


@pytest.mark.parametrize("tokens", [6, 7, 8, 21])
@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "llama4_text"])
def test_windows_are_honoured_at_their_edges(model_type, tokens):
    config = tiny_config(model_type)
    assert differences(config, tokens) == 0
    longer = read(config).stored_bytes(tokens + 1, "float32") - read(config).stored_bytes(tokens, "float32")
    full_layers = {"mistral": 0}.get(model_type, 2)
    assert longer == (4 if tokens < 7 else full_layers) * 2 * 2 * 16 * 4  # layers, k and v, heads, dims, bytes


@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 6, 19, 20, 21])
def test_compressed_entries_and_what_waits_to_be_compressed(tokens):
    # By shape: a tensor that waits is a slice of the step before, whose storage is longer. The window keeps its newest
    # token for the step only, so that by shape it holds one less.
    config = tiny_config("deepseek_v4")
    held = shape_bytes(cached(config, tokens))
    beyond = max(0, tokens - 6) and 1
    newest = (2 * 2 + 2) * 16 * 4 * 2 * beyond  # two layers store twice, two once; dims, bytes, batch
    assert held + newest == read(config).stored_bytes(tokens, "float32", batch=2)


@pytest.mark.parametrize("model_type", ["qwen3_next", "llama"])
def test_a_recurrent_state_keeps_its_own_dtype(model_type):
    assert differences(tiny_config(model_type), TOKENS, "bfloat16") == 0


@pytest.mark.parametrize(
    ("model_type", "others"),
    [
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 1}),
        ("falcon", {"new_decoder_architecture": True}),
        ("falcon", {"multi_query": False, "num_kv_heads": 6}),
        ("falcon", {"multi_query": True}),
        ("gpt_bigcode", {"multi_query": False}),
        ("gpt_bigcode", {"multi_query": True}),
        ("gemma4_text", {"attention_k_eq_v": False, "num_kv_shared_layers": 0}),
        (
            "gemma4_text",
            {"num_kv_shared_layers": 1, "layer_types": [*MIXED[:2], "sliding_attention", "full_attention"]},
        ),
        ("mistral", {"sliding_window": None}),
        ("phi3", {"sliding_window": None, "num_key_value_heads": 6}),
    ],
)
def test_the_choices_of_a_family(model_type, others):
    assert differences(tiny_config(model_type, **others), TOKENS) == 0


def test_stored_is_more_than_needed_where_the_runtime_keeps_it_twice():
    def factor(model_type, **others):
        cache = read(tiny_config(model_type, **others))
        return cache.stored_bytes(TOKENS, "float32") / cache.needed_bytes(TOKENS, "float32")

    full = {"layer_types": ["full_attention"] * 4, "num_kv_shared_layers": 0}
    assert factor("gemma4_text", **full) == 2
    assert factor("falcon", new_decoder_architecture=True) == 3
    assert factor("llama") == 1
    assert factor("deepseek_v4", layer_types=["sliding_attention"] * 4) == 2
    assert factor("deepseek_v4", layer_types=["heavily_compressed_attention"] * 4) == 1


def test_layers_that_reuse_rows_name_their_owner_and_keep_nothing():
    layers = read(tiny_config("gemma4_text")).layers
    assert [layer.owner for layer in layers] == [None, None, 0, 1]
    assert all((not layer.needed) == (layer.owner is not None) for layer in layers)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "deepseek_v3"])
def test_parameters_are_counted_without_storage(model_type):
    from transformers import AutoModelForCausalLM

    config = tiny_config(model_type)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type].from_dict(config))
    assert count_parameters(config) == sum(parameter.numel() for parameter in model.parameters())
