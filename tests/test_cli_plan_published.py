"""`twofold plan --config`: the cache of a published model, for programs and for people."""

import json

import pytest

from command_line import run
from published_configurations import DEEPSEEK_V2, GEMMA_4_31B, LLAMA_3_8B

LLAMA_PARAMETERS = 8_030_261_248
"""Of meta-llama/Meta-Llama-3-8B, as its model card's files hold them."""


@pytest.fixture
def folder(tmp_path):
    """Writes a configuration and gives the folder that holds it."""

    def write(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return write


def as_json(capsys, *arguments):
    outcome = run(capsys, "plan", "--config", *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def printed(capsys, *arguments):
    """Standard output as one line, spaces made equal."""
    outcome = run(capsys, "plan", "--config", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    return " ".join(outcome.out.split())


def test_json_holds_the_promised_keys(capsys, folder):
    plan = as_json(capsys, folder(LLAMA_3_8B), "--context", "4096", "--batch", "3", "--memory", "24GiB")
    assert (plan["model_type"], plan["layers"], plan["dtype"]) == ("llama", 32, "bfloat16")
    assert (plan["parameters"], plan["weight_bytes"]) == (LLAMA_PARAMETERS, 2 * LLAMA_PARAMETERS)
    needed, stored, shared = plan["figures"]
    assert needed["bytes_per_token"] == stored["bytes_per_token"] == 2 * shared["bytes_per_token"] == 128 * 1024
    assert needed["bytes"] == 512 * 2**20
    assert needed["bytes_batch"] == 3 * needed["bytes"]
    assert needed["sequences_that_fit"] == (24 * 2**30 - 2 * LLAMA_PARAMETERS) // needed["bytes"]
    assert plan["kinds"][0]["rows"][0]["numbers"] == 2048
    assert plan["warnings"] == []


def test_people_read_both_shares_of_deepseek_v2(capsys, folder):
    words = printed(capsys, folder(DEEPSEEK_V2))
    assert "60 MLA latent and rotary key 1/128 576 – 576 1.40625 %" in words
    assert "1.40625 % of keys and values at their own widths, 128·(192 + 128), and 1.75781 % of 2·128·128." in words
    assert "makes keys and values of all of it at every step" in words
    assert "what if" not in words


def test_people_read_what_gemma_4_needs_and_what_is_stored(capsys, folder):
    words = printed(capsys, folder({"model_type": "gemma4", "text_config": GEMMA_4_31B}), "--context", "32768")
    assert "gemma4_text, 60 layers;" in words
    assert "50 window keys and values 16/32 8,192 1,024 8,192 50 %" in words
    assert "10 full, K=V key = value 4/32 2,048 – 4,096 6.25 %" in words
    assert "needed 860,160 40,960 2,080.00 2.902 %" in words
    assert "transformers stores 901,120 81,920 3,360.00 4.688 %" in words
    assert "what if K=V, same heads 450,560 40,960 1,680.00 2.344 %" in words


def test_variants_are_compared_with_the_model(capsys, folder):
    words = printed(capsys, folder(LLAMA_3_8B), "--variant", "K=V MQA", "--variant", "K=V", "--batch", "2")
    assert "what if K=V MQA 8,192 8,192 64.00 128.00 1.562 %" in words
    assert "what if K=V 262,144 262,144 2,048.00 4,096.00 50 %" in words
    assert "same heads" not in words


def test_memory_says_how_many_sequences_fit(capsys, folder):
    words = printed(capsys, folder(LLAMA_3_8B), "--memory", "24GiB", "--context", "9000")
    assert "8,030,261,248 parameters, weights 15,316.51 MiB" in words
    assert "warning: context 9,000 exceeds the 8,192 positions of this model" in words
    assert "131,072 131,072 1,125.00 25 % 8 " in words


def test_a_model_that_is_not_known_has_question_marks_and_a_note(capsys, folder):
    config = {"model_type": "new", "num_layers": 3, "n_head": 2, "hidden_size": 8, "max_seq_len": 40}
    words = printed(capsys, folder(config), "--memory", "1GB")
    assert "new, 3 layers; cache in bfloat16" in words
    assert "3 full keys and values 2/2 16 – ? 100 %" in words
    assert "new was not compared with a real cache" in words
    assert "warning: the parameters could not be counted" in words


def test_states_and_strides_are_named(capsys, folder):
    words = printed(capsys, folder({"model_type": "deepseek_v4", "num_hidden_layers": 2, "compress_ratios": [4, 0]}))
    assert "compressed entries, 1 per 4 tokens 1/64 512 – 512" in words
    assert "compressed entries, unfinished 1/64 2,048 <4 2,048" in words
    assert "1 window, K=V key = value 1/64 512 128 1,024" in words
    words = printed(capsys, folder({"model_type": "qwen3_next", "num_hidden_layers": 4}))
    assert "3 recurrent convolution – 32,768 1 32,768 – recurrent state – 524,288 1 524,288" in words
    words = printed(capsys, folder({"model_type": "gemma3n_text"}), "--context", "10")
    assert "reuses layer 18 nothing" in words


def test_no_line_of_the_tables_is_cut_in_a_narrow_terminal(capsys, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    out = run(capsys, "plan", "--config", folder(GEMMA_4_31B), "--memory", "80GiB", "--batch", "4").out
    assert "…" not in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    "size", [["--heads", "3"], ["--preset", "300M"], ["--head-dim", "4"], ["--tied"], ["--tokens", "5"]]
)
def test_sizes_and_a_configuration_exclude_each_other(capsys, folder, size):
    outcome = run(capsys, "plan", "--config", folder(LLAMA_3_8B), *size)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"twofold plan: --config and {size[0]} exclude each other")
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({"model_type": "llama", "num_key_value_heads": -1}, [], "num_key_value_heads is -1: write a whole number"),
        ({"model_type": ["a"]}, [], "model_type is a list"),
        ({"model_type": "llama", "vocab_size": "wide"}, [], "transformers cannot read this llama configuration"),
        ({"model_type": "bert"}, [], "bert is not a decoder"),
        ({"model_type": "mamba"}, [], "what a mamba model caches is not known here"),
        (LLAMA_3_8B, ["--context", "0"], "context must be at least 1, not 0"),
        (LLAMA_3_8B, ["--dtype", "fp7"], "unknown dtype 'fp7'"),
        (LLAMA_3_8B, ["--variant", "GQA-5"], "32 query heads cannot be shared out evenly"),
        (LLAMA_3_8B, ["--variant", "K=W"], "K=W"),
        (DEEPSEEK_V2, ["--variant", "MQA"], "leave --variant out"),
    ],
)
def test_a_mistake_is_one_line(capsys, folder, config, arguments, message):
    outcome = run(capsys, "plan", "--config", folder(config), *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_missing_file_is_one_line(capsys, tmp_path):
    outcome = run(capsys, "plan", "--config", str(tmp_path / "config.json"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "there is no configuration at" in outcome.err


def test_the_help_has_an_example(capsys):
    assert "--config meta-llama/Meta-Llama-3-8B" in run(capsys, "plan", "--help").out
