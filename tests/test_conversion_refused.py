"""What does not convert is refused by name, with what is missing."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from small_checkpoints import SIZES, checkpoint
from twofold.conversion.convert import convert_in, convert_out
from twofold.conversion.families import FAMILIES
from twofold.conversion.names import tensors_in, tensors_out
from twofold.conversion.source import open_source
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("llama", {"rope_parameters": LLAMA3}, "rotary scaling 'llama3' does not convert"),
        ("qwen2", {"rope_parameters": LINEAR}, "rotary scaling 'linear' does not convert"),
        ("llama", {"attention_bias": True}, "attention_bias True does not convert: RMSNorm blocks have no bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias True does not convert: SwiGLU has no biases"),
        ("mistral untied", {"hidden_act": "gelu"}, "hidden_act 'gelu' does not convert"),
        ("qwen3, head dim 10", {"rms_norm_eps": 1e-5}, "rms_norm_eps 1e-05 does not convert: norms of queries"),
        (
            "gpt2",
            {"activation_function": "silu"},
            "^a gpt2 model with activation_function 'silu' does not convert: .* GELU, exact or",
        ),
        (
            "opt",
            {"activation_function": "gelu_fast"},
            "^an opt model with activation_function 'gelu_fast' does not convert",
        ),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before False does not convert: .*OPT-350M"),
        ("opt", {"_remove_final_layer_norm": True}, "has a norm behind its last block"),
        ("opt", {"enable_bias": False}, "enable_bias False does not convert: blocks with LayerNorm have biases"),
        ("opt", {"layer_norm_elementwise_affine": False}, "norms have weights and biases"),
        ("opt", {"word_embed_proj_dim": 12}, "word_embed_proj_dim 12 and hidden_size 24 does not convert"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "all layers scale their scores alike"),
        ("gpt2", {"scale_attn_weights": False}, "scores are divided by √d"),
    ],
)
def test_options_that_the_decoder_has_not(name, fields, message):
    with pytest.raises(ValueError, match=message):
        convert_in(checkpoint(name, **fields))


@pytest.mark.parametrize(("kind", "message"), [("gpt_neox", "side by side"), ("bloom", "nobody has compared")])
def test_families_that_the_decoder_has_not(kind, message):
    fields = {k: v for k, v in SIZES.items() if k in ("vocab_size", "hidden_size", "num_attention_heads")}
    config = CONFIG_MAPPING[kind](**fields, num_hidden_layers=1)
    with pytest.raises(ValueError, match=f"a '{kind}' model does not convert: .*{message}.*families that do are llama"):
        convert_in(AutoModelForCausalLM.from_config(config))


def test_tensors_that_transformers_renames_are_not_called_unknown(tmp_path):
    """GPT-NeoX's head lies in files as `embed_out`; as a teacher such a model opens, and it does not convert."""
    fields = {k: v for k, v in SIZES.items() if k in ("vocab_size", "hidden_size", "num_attention_heads")}
    AutoModelForCausalLM.from_config(CONFIG_MAPPING["gpt_neox"](**fields, num_hidden_layers=1)).save_pretrained(
        tmp_path
    )
    assert open_source(str(tmp_path)).model.config.model_type == "gpt_neox"
    with pytest.raises(ValueError, match="side by side"):
        convert_in(str(tmp_path))


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("llama", {"variant": "K=V"}, "its variant is K=V; no family"),
        ("llama", {"layer_variants": ["QKV", "K=V"]}, "its variant is K=V; no family"),
        ("llama", {"layer_variants": ["QKV", "GQA-2"]}, "have as many key/value heads: here are QKV, GQA-2; no family"),
        ("llama", {"variant": "QKV CLA-2"}, "its variant is .*CLA-2"),
        ("llama", {"qk_norm": True, "norm_eps": 1e-6}, "whose qk_norm is False: here it is True; it converts to qwen3"),
        ("llama", {"qkv_bias": True}, "it converts to qwen2"),
        ("llama", {"sliding_window": 5}, "no layer may have a window: the pattern here is S; it converts to mistral"),
        ("mistral", {"sliding_window": 5, "layer_pattern": "SL"}, "all layers or none may have a window"),
        ("mistral", {"sliding_window": 5, "layer_pattern": "B"}, "none of whose layers sees blocks"),
        ("llama", {"softcap": 2.0}, "whose softcap is 0.0: here it is 2.0"),
        ("llama", {"rotary": "partial", "rotary_dims": 4}, "whose rotary is 'full'"),
        ("llama", {"hidden_size": 25, "head_dim": 8}, "whose width is a multiple of its heads.*it converts to mistral"),
        ("gpt2", {"block": "paper", "variant": "GQA-2"}, "here are 4 heads × 6 dims, 2 key/value heads"),
        ("qwen3", {"qk_norm": True, "norm_eps": 1e-5}, "whose norm_epsilon is 1e-06"),
        ("gpt2", {"block": "paper", "position_offset": 2, "norm_eps": 1e-6}, "whose position_offset is 0: here it is"),
        ("gpt2", {"block": "paper", "position_offset": 2}, "it converts to opt"),
        ("opt", {"block": "paper"}, "whose position_offset is 2: here it is 0; it converts to gpt2"),
        ("opt", {"block": "paper", "position_offset": 2, "norm_eps": 1e-6}, "whose norm_epsilon is 1e-05"),
        ("opt", {"block": "paper", "position_offset": 2, "variant": "MQA"}, "4 heads × 6 dims, 1 key"),
        ("bert", {}, "'bert' model does not convert"),
    ],
)
def test_what_a_family_has_not(family, fields, message):
    model = TwofoldForCausalLM(TwofoldConfig(num_hidden_layers=2, vocab_size=31, **{"hidden_size": 24, **fields}))
    with pytest.raises(ValueError, match=message):
        convert_out(model, family)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_missing_and_unknown_tensors_are_named(family):
    names, state = FAMILIES[family].names, dict(checkpoint(family).state_dict())
    layers = 3 if family == "llama" else 2
    for name in [name for name in state if name != "lm_head.weight"]:
        fewer = {key: tensor for key, tensor in state.items() if key != name}
        with pytest.raises(ValueError, match=f"lacks {name}:"):
            tensors_in(names, fewer, layers, tied=True)
    with pytest.raises(ValueError, match=r"nothing would read, extra\.weight:"):
        tensors_in(names, state | {"extra.weight": torch.ones(2)}, layers, tied=True)
    with pytest.raises(ValueError, match=r"lm_head\.weight is not .*and the configuration ties them"):
        tensors_in(names, state | {"lm_head.weight": state["lm_head.weight"] + 1}, layers, tied=True)
    ours = tensors_in(names, state, layers, tied=True)
    ours.pop("model.norm.weight")
    with pytest.raises(ValueError, match=r"lacks model\.norm\.weight"):
        tensors_out(names, ours, layers, tied=True)


def test_files_with_too_much_or_too_little_are_refused(tmp_path):
    checkpoint("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    convert_in(str(tmp_path))
    save_file(state | {"model.layers.1.self_attn.q_proj.bias": torch.ones(24)}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"holds model\.layers\.1\.self_attn\.q_proj\.bias, and a 'llama' model"):
        convert_in(str(tmp_path))
    short = {name: tensor for name, tensor in state.items() if name != "model.layers.2.mlp.up_proj.weight"}
    save_file(short, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"missing in the weights: model\.layers\.2\.mlp\.up_proj\.weight"):
        convert_in(str(tmp_path))


def test_constants_of_older_versions_are_no_tensors(tmp_path):
    checkpoint("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    save_file(load_file(file) | old, file, metadata={"format": "pt"})
    assert isinstance(convert_in(str(tmp_path)), TwofoldForCausalLM)


def test_each_direction_takes_its_own_models():
    model = checkpoint("llama")
    with pytest.raises(ValueError, match="one of Twofold's already"):
        convert_in(convert_in(model))
    with pytest.raises(ValueError, match="is no decoder of Twofold"):
        convert_out(model, "llama")
