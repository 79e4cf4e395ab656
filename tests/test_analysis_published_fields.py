"""Configurations with values that no model can have: each is one line that names the field, whatever reads it."""

import pytest

from published_configurations import DEEPSEEK_V2
from tiny_published import tiny_config
from twofold.analysis.published_plan import plan_published
from twofold.analysis.published_source import count_parameters, read

UNKNOWN = {
    "model_type": "mymodel",
    "architectures": ["MyForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LATENT = {**UNKNOWN, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
NO_COUNTS = {
    "-1": -1,
    "text": "8",
    "no number": "wide",
    "list": [4],
    "object": {"a": 4},
    "fraction": 2.5,
    "whole fraction": 8.0,
    "true": True,
    "false": False,
    "infinite": float("inf"),
    "huge": 10**399,
}


def refused(config) -> str:
    """The message, which must be one line of a readable length."""
    with pytest.raises(ValueError, match=r"\A.{1,400}\Z") as caught:
        read(config)
    return str(caught.value)


@pytest.mark.parametrize("value", NO_COUNTS.values(), ids=NO_COUNTS)
def test_a_count_that_is_none_is_named(value):
    counts = dict.fromkeys(UNKNOWN, UNKNOWN)
    del counts["model_type"], counts["architectures"]
    counts |= dict.fromkeys(("head_dim", "sliding_window", "attention_chunk_size", "num_kv_shared_layers"), UNKNOWN)
    counts |= dict.fromkeys(("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), LATENT)
    for name, config in counts.items():
        message = refused({**config, name: value})
        assert message.startswith(f"{name} is ")
        assert "write a whole number" in message or "can be planned" in message


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("llama", ["num_key_value_heads", "num_attention_heads", "num_hidden_layers", "head_dim"]),
        ("mistral", ["sliding_window"]),
        ("gemma3n_text", ["num_kv_shared_layers"]),
        ("deepseek_v3", ["qk_nope_head_dim", "kv_lora_rank", "v_head_dim"]),
        ("deepseek_v32", ["index_head_dim"]),
        ("deepseek_v4", ["index_head_dim", "sliding_window", "num_attention_heads"]),
        ("falcon", ["num_attention_heads"]),
        ("gpt_bigcode", ["n_head"]),
        ("qwen3_next", ["linear_num_value_heads", "num_key_value_heads"]),
    ],
)
def test_no_family_reads_a_negative_count(model_type, names):
    config = tiny_config(model_type)
    for name in names:
        assert f"{name} is -3" in refused({**config, name: -3}).replace(" (num_attention_heads)", "")


def test_zero_is_none_only_for_windows_and_layers_that_reuse():
    whole = read(UNKNOWN)
    for name in ("sliding_window", "attention_chunk_size", "num_kv_shared_layers"):
        assert read({**UNKNOWN, name: 0}) == whole
    for name in ("num_key_value_heads", "num_attention_heads", "hidden_size", "head_dim", "num_hidden_layers"):
        assert refused({**UNKNOWN, name: 0}).startswith(f"{name} is 0: write a whole number of at least 1")
    assert refused({"model_type": "llama", "num_key_value_heads": 0}).startswith("num_key_value_heads is 0")


def test_a_number_in_quotes_is_said_to_be_text():
    assert "is the text '8', and not a number" in refused({**UNKNOWN, "num_hidden_layers": "8"})
    assert "num_hidden_layers is the text '8', and not a number" in refused(
        {"model_type": "llama", "num_hidden_layers": "8"}
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layer_types", 5, "layer_types is 5: write a list"),
        ("layer_types", ["full_attention", 3, "a", "b"], r"layer_types\[1\] is 3"),
        ("architectures", 5, "architectures is 5: write a list"),
        ("architectures", [None], r"architectures\[0\] is null"),
        ("architectures", "MyForCausalLM", "architectures is the text 'MyForCausalLM': write a list"),
        ("text_config", 5, "text_config is 5: write an object"),
        ("text_config", [1], "text_config is a list: write an object"),
        ("text_config", {"num_hidden_layers": "3"}, "num_hidden_layers is the text '3'"),
        ("model_type", ["a"], "model_type is a list: write one name"),
        ("model_type", 3, "model_type is 3: write one name"),
        ("use_sliding_window", "false", "use_sliding_window is the text 'false': write true or false"),
        ("is_encoder_decoder", "no", "is_encoder_decoder is the text 'no'"),
        ("num_hidden_layers", 100_001, "no more than 100,000"),
    ],
)
def test_what_is_no_count_is_checked_too(name, value, message):
    with pytest.raises(ValueError, match=message):
        read({**UNKNOWN, name: value})


def test_what_transformers_refuses_is_one_line():
    for other in ("many", "9" * 1000):
        assert "cannot read this llama configuration" in refused({"model_type": "llama", "vocab_size": other})
    assert "cannot list the layers of this gpt2" in refused({"model_type": "gpt2", "attribute_map": {}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "brackets within brackets"),
        ('{"num_layers": ' + "7" * 5000 + "}", "a number of 5,000 digits"),
        ('{"num_layers": ' + "7" * 401 + "}", "a number of 401 digits"),
    ],
)
def test_a_file_beyond_any_configuration_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"config.json is not JSON.*{message}"):
        read(path)


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mymodel", "n_layer": 3, "n_head": 2, "n_embd": 10}', encoding="utf-8-sig")
    assert len(read(path).layers) == 3


def test_very_many_layers_are_listed_and_their_parameters_are_not_counted(monkeypatch):
    monkeypatch.setattr(
        "transformers.AutoModelForCausalLM.from_config", lambda *_, **__: pytest.fail("a model was built")
    )
    layers = 20_011
    for config, stored in (({"model_type": "llama"}, True), (UNKNOWN, False)):
        cache = read({**config, "num_hidden_layers": layers, "num_key_value_heads": 4})
        assert count_parameters({**config, "num_hidden_layers": layers}) is None
        assert any("at most 1,000 layers" in note for note in cache.notes)
        (kind,) = plan_published(cache, context=3).kinds
        assert (kind.layers, len(cache.distinct), cache.stored_is_known) == (layers, 1, stored)
    assert not any("1,000" in note for note in read(DEEPSEEK_V2).notes)


def test_layers_alike_are_counted_together_and_sums_stay():
    cache = read(tiny_config("gemma3_text"))
    one_by_one = sum(kept.bytes(23, "float32", 3) for layer in cache.layers for kept in layer.needed)
    assert (list(cache.distinct.values()), cache.needed_bytes(23, "float32", 3)) == ([2, 2], one_by_one)
