"""Published configurations, read: the numbers that papers and model cards give, and what is refused."""

import json
from fractions import Fraction

import pytest
from transformers import CONFIG_MAPPING

from published_configurations import DEEPSEEK_V2, FALCON_40B, GEMMA_4_31B, GPT_2, LLAMA_3_8B, MISTRAL_7B, QWEN_2_5_7B
from twofold.analysis.published import Kept
from twofold.analysis.published_plan import NEEDED, SHARED, STORED, plan_published
from twofold.analysis.published_source import configuration, count_parameters, read
from twofold.variants.layout import RowLayout
from twofold.variants.notation import parse

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        (LLAMA_3_8B, 128 * KIB),
        (MISTRAL_7B, 128 * KIB),
        (QWEN_2_5_7B, 28 * 2 * 4 * 128 * 2),
        (GPT_2, 12 * 2 * 768 * 2),
        (FALCON_40B, 60 * 2 * 8 * 64 * 2),
        ({"model_type": "falcon"}, 32 * 2 * 64 * 2),  # Falcon-7B is the class's default: multi-query
        (DEEPSEEK_V2, 60 * 576 * 2),
    ],
)
def test_bytes_per_token_in_bfloat16(config, bytes_per_token):
    cache = read(config)
    assert cache.bytes_per_token("bfloat16", past_windows=False) == bytes_per_token
    assert cache.needed_bytes(1, "bfloat16") == bytes_per_token


def test_deepseek_v2_caches_576_numbers_against_both_yardsticks():
    (kind,) = plan_published(read(DEEPSEEK_V2)).kinds
    (row,) = kind.rows
    assert (kind.layers, row.numbers, row.stored) == (60, 576, 576)
    assert kind.share_of_own_widths == 576 / (128 * (192 + 128)) == 0.0140625
    assert kind.share_of_value_width == 576 / (2 * 128 * 128) == 0.017578125


def test_a_window_bounds_the_cache():
    mistral = read(MISTRAL_7B)
    assert mistral.needed_bytes(4096, "bfloat16") == mistral.needed_bytes(32768, "bfloat16") == 512 * MIB
    assert mistral.bytes_per_token("bfloat16", past_windows=True) == 0
    unused = read(QWEN_2_5_7B)
    assert unused.bytes_per_token("bfloat16", past_windows=True) > 0


def test_gemma_4_needs_half_of_what_its_global_layers_store():
    cache = read(GEMMA_4_31B)
    needed, stored = (
        [sum(kept.numbers for kept in getattr(layer, which)) for layer in cache.layers]
        for which in ("needed", "stored")
    )
    assert needed == [8192, 8192, 8192, 8192, 8192, 2048] * 10
    assert stored == [8192, 8192, 8192, 8192, 8192, 4096] * 10
    # Past the windows only the ten global layers grow.
    assert cache.bytes_per_token("bfloat16", past_windows=True) == 10 * 4 * 512 * 2
    assert cache.bytes_per_token("bfloat16", past_windows=True, stored=True) == 2 * 10 * 4 * 512 * 2
    windows = 50 * 1024 * 2 * 16 * 256 * 2
    assert cache.needed_bytes(32768, "bfloat16") == windows + 32768 * 10 * 4 * 512 * 2


def test_a_model_for_images_too_is_read_by_its_text_part():
    both = read({"model_type": "gemma4", "text_config": GEMMA_4_31B})
    assert both.layers == read(GEMMA_4_31B).layers
    unknown = read({"model_type": "seer", "text_config": {"num_hidden_layers": 3, "n_head": 2, "hidden_size": 10}})
    assert [layer.needed[0].numbers for layer in unknown.layers] == [20] * 3


def test_deepseek_v4_counts_windows_entries_and_states():
    config = {"model_type": "deepseek_v4", "num_hidden_layers": 3, "compress_ratios": [0, 4, 128]}
    plain, sparse, heavy = read(config).layers
    assert [kept.numbers for kept in plain.needed] == [512]
    assert [kept.numbers for kept in plain.stored] == [1024]
    assert (sparse.stored, heavy.stored) == (sparse.needed, heavy.needed)
    assert sparse.numbers == 512 + Fraction(512 + 128, 4)
    assert heavy.numbers == 512 + Fraction(512, 128)


def test_the_configuration_class_fills_in_what_a_file_leaves_out():
    class_default = CONFIG_MAPPING["llama"]()
    assert read({"model_type": "llama"}).layers == read(class_default.to_dict()).layers
    assert read(LLAMA_3_8B).positions == 8192


def test_what_if_keys_were_values():
    cache = read(LLAMA_3_8B)
    figures = {one.name: one for one in plan_published(cache, context=1000, memory=40 * MIB).figures}
    assert list(figures) == [NEEDED, STORED, SHARED]
    assert figures[SHARED].bytes * 2 == figures[NEEDED].bytes == figures[STORED].bytes == 125 * MIB
    assert (figures[NEEDED].share, figures[SHARED].share) == (0.25, 0.125)
    variants = [parse(text) for text in ("K=V", "MQA", "K=V MQA", "K=V GQA-4")]
    shares = [one.share for one in plan_published(cache, variants=variants).figures[2:]]
    assert shares == [1 / 2, 1 / 32, 1 / 64, 1 / 16]
    latent = plan_published(cache, variants=[parse("MLA")]).figures[2]
    assert latent.bytes_per_token == 32 * (4 * 128 + 64) * 2


def test_a_what_if_keeps_windows_and_what_is_shared_already():
    cache = read(GEMMA_4_31B)
    needed, _, changed = plan_published(cache, context=2000).figures
    windows = 50 * 1024 * 2 * 16 * 256 * 2
    assert needed.bytes - changed.bytes == windows // 2


@pytest.mark.parametrize(
    ("config", "variant", "message"),
    [
        (DEEPSEEK_V2, "MQA", "no layer of this deepseek_v2 model"),
        (LLAMA_3_8B, "GQA-5", "32 query heads"),
        (LLAMA_3_8B, "K=V +", "within each layer"),
    ],
)
def test_variants_that_cannot_be_tried_are_refused(config, variant, message):
    with pytest.raises(ValueError, match=message):
        plan_published(read(config), variants=[parse(variant)])


def test_sequences_that_fit_are_those_beside_the_weights():
    cache, weights = read(LLAMA_3_8B), 2 * 1_000_003
    one = cache.needed_bytes(101, "bfloat16")

    def fit(memory):
        plan = plan_published(cache, context=101, memory=memory, parameters=1_000_003)
        return plan.figures[0].sequences_that_fit

    assert [fit(weights + 7 * one + extra) for extra in (-1, 0, one - 1, one)] == [6, 7, 7, 8]
    assert fit(1) == 0


def test_int8_rows_have_scales_and_no_counterpart_in_transformers():
    plan = plan_published(read(LLAMA_3_8B), context=10, dtype="int8")
    assert [one.name for one in plan.figures] == [NEEDED, SHARED]
    assert plan.figures[0].bytes == 10 * 32 * 8 * (2 * 128 + 4)
    assert any("int8" in note for note in plan.notes)


def test_a_plan_is_json_and_warns():
    plan = plan_published(read(LLAMA_3_8B), context=8193, memory=1)
    again = json.loads(json.dumps(plan.as_dict()))
    assert again["context"] == 8193
    assert "exceeds the 8,192 positions" in again["warnings"][0]
    assert "could not be counted" in again["warnings"][1]
    assert not plan_published(read(LLAMA_3_8B)).warnings


@pytest.mark.parametrize("name", ["context", "batch", "memory"])
def test_sizes_below_one_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        plan_published(read(LLAMA_3_8B), **{name: 0})


def test_no_longest_context_needs_one():
    cache = read({"model_type": "new", "num_layers": 2, "n_head": 3, "d_model": 12})
    with pytest.raises(ValueError, match="names no longest context"):
        plan_published(cache)
    assert plan_published(cache, context=5).figures[0].bytes == 5 * 2 * 2 * 12 * 2


def test_an_unknown_model_type_is_read_with_a_note_and_without_a_word_on_what_is_stored():
    cache = read(
        {"model_type": "new", "num_layers": 7, "n_heads": 6, "n_kv_heads": 3, "d_model": 66, "max_seq_len": 40}
    )
    assert cache.needed_bytes(1, "float32") == 7 * 2 * 3 * 11 * 4
    assert (cache.positions, cache.stored_is_known) == (40, False)
    assert "new was not compared with a real cache" in cache.notes[0]
    assert [one.name for one in plan_published(cache).figures] == [NEEDED, SHARED]
    assert count_parameters({"model_type": "new"}) is None


UNKNOWN = {"num_hidden_layers": 4, "num_attention_heads": 6, "hidden_size": 66}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "it names no layers"),
        ({"model_type": "llama", "vocab_size": "wide"}, "transformers cannot read this llama configuration"),
        ({"model_type": "twofold", "variant": "K=V"}, "model of this package, K=V"),
        ({"model_type": "bert"}, "bert is not a decoder"),
        ({"model_type": "vit"}, "vit is not a decoder"),
        ({"model_type": "t5"}, "encoder with a decoder"),
        ({"model_type": "openai-gpt"}, "no use_cache"),
        ({"model_type": "mamba"}, "state_size"),
        ({"model_type": "xlstm"}, "xlstm"),
        ({"model_type": "dbrx"}, "attn_config"),
        ({"model_type": "falcon_h1"}, "mamba"),
        ({"model_type": "lfm2"}, "conv_L_cache"),
        ({"model_type": "gpt_neo"}, "attention_types"),
        ({**UNKNOWN, "multi_query_group_num": 2}, "multi_query_group_num"),
        ({**UNKNOWN, "attention_k_eq_v": True}, "attention_k_eq_v"),
        ({**UNKNOWN, "architectures": ["NewForMaskedLM"]}, "NewForMaskedLM"),
        ({**UNKNOWN, "is_encoder_decoder": True}, "has an encoder"),
        ({**UNKNOWN, "hidden_size": 65}, "6 query heads, width 65, head dim None"),
        ({**UNKNOWN, "layer_types": ["full_attention"] * 3}, "3 layer types for 4 layers"),
        ({**UNKNOWN, "layer_types": ["linear_attention"] * 4}, "layer 0 .* 'linear_attention'"),
        ({**UNKNOWN, "layer_types": ["sliding_attention"] * 4}, "names no window"),
        ({**UNKNOWN, "num_kv_shared_layers": 4}, "no layer below has any"),
        ({**UNKNOWN, "kv_lora_rank": 8}, "no qk_rope_head_dim"),
    ],
)
def test_what_cannot_be_read_for_certain_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        read(config)


def test_a_file_and_a_folder_are_read_alike(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK_V2))
    assert read(path) == read(tmp_path) == read(str(path)) == read(DEEPSEEK_V2)


@pytest.mark.parametrize(("text", "message"), [("[1]", "holds a list"), ("{", "is not JSON"), ("\xff", "is not JSON")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        read(path)


def test_a_path_that_is_not_there_is_no_hub_name(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", lambda *_: pytest.fail("asked the hub"))
    for source in (tmp_path / "config.json", tmp_path / "none", "./none", "a/b/c"):
        with pytest.raises(ValueError, match="there is no configuration at"):
            read(source)


def test_a_hub_name_is_asked_for_its_configuration_and_runs_no_code(monkeypatch):
    asked = []

    def hub(name, **others):
        asked.append((name, others))
        return dict(DEEPSEEK_V2), {}

    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", hub)
    assert read("deepseek-ai/DeepSeek-V2") == read(DEEPSEEK_V2)
    assert asked == [("deepseek-ai/DeepSeek-V2", {})]
    assert type(configuration("deepseek-ai/DeepSeek-V2")).__module__.startswith("transformers.")


def test_a_hub_that_does_not_answer_is_the_users_mistake(monkeypatch):
    def hub(name):
        raise OSError("no connection")

    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", hub)
    with pytest.raises(ValueError, match="none came from the hub: no connection"):
        read("nobody/nothing")


def test_a_state_is_there_from_its_first_stride_and_does_not_grow():
    state = Kept.state(13, "state", stride=4)
    assert [state.bytes(tokens, "float32") for tokens in (3, 4, 5, 400)] == [0, 52, 52, 52]
    waiting = Kept(RowLayout.shared(3), 1, stride=5, unfinished=True)
    assert [waiting.bytes(tokens, "int8") for tokens in (4, 5, 7)] == [4 * 7, 0, 2 * 7]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"model_type": "llama", "num_layers": 4, "hidden_size": 512, "num_attention_heads": 8}, "layers 32"),
        ({"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512}, "heads 32"),
        ({"model_type": "gpt2", "n_layer": 3, "n_embd": 24}, "heads 12"),
    ],
)
def test_what_transformers_filled_in_is_told(written, told):
    assert f"transformers' defaults: {told}." in read(written).notes[0]


def test_nothing_is_told_where_all_is_written():
    written = {"model_type": "gpt2", "n_layer": 3, "n_embd": 24, "n_head": 2}
    assert not any("defaults" in note for note in read(written).notes)
