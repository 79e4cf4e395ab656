"""Checkpoints: bit-equal round trips, one tensor per shared matrix, and the Auto classes in a fresh process."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from small_models import PAIRED, random_ids, small_config, small_model
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM, TwofoldModel
from twofold.models.fingerprint import fingerprint

ABSENT = {"QKV": (), "Q=K": ("q_proj",), "K=V": ("v_proj",), "Q=K=V": ("q_proj", "v_proj"), "K=V MQA": ("v_proj",)}


def tensors_in(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)


@pytest.mark.parametrize("fused", [False, True], ids=["separate", "fused"])
@pytest.mark.parametrize(("variant", "style"), PAIRED)
def test_a_saved_model_is_bit_equal(variant, style, fused, tmp_path):
    model = small_model(variant, *style, fused_projections=fused)
    model.save_pretrained(tmp_path)
    loaded, info = TwofoldForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert loaded.dtype == torch.float64
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    ids = random_ids(2, 7)
    with torch.no_grad():
        # Not to the last bit: weights that are mapped from a file lie at other addresses.
        torch.testing.assert_close(loaded.eval()(ids).logits, model(ids).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ABSENT)
def test_a_file_holds_every_shared_matrix_once(variant, tmp_path):
    model = small_model(variant)
    model.save_pretrained(tmp_path)
    stored = tensors_in(tmp_path)
    assert stored.keys() == dict(model.named_parameters()).keys()
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())
    for matrix in ("q_proj", "k_proj", "v_proj"):
        assert any(f".{matrix}." in name for name in stored) == (matrix not in ABSENT[variant])


def test_untied_heads_are_stored_and_stay_untied(tmp_path):
    model = small_model(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded = TwofoldForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)


def test_a_configuration_survives_its_file(tmp_path):
    config = small_config("Q-GQA-2", "paper", "full", dropout=0.3, rope_theta=500.0, norm_eps=1e-6, eos_token_id=3)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is TwofoldConfig
    assert loaded.architecture == config.architecture
    assert (loaded.variant, loaded.rope_theta, loaded.eos_token_id) == ("K=V GQA-2", 500.0, 3)
    assert {**loaded.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["model_type"], stored["variant"]) == ("twofold", "K=V GQA-2")
    again = TwofoldConfig.from_architecture(config.architecture, eos_token_id=3)
    assert again.architecture == config.architecture


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"variant": "K=W"}, "unknown variant 'K=W'"),
        ({"head_dim": 5}, "head_dim must be even, not 5"),
        ({"variant": "GQA-4"}, "6 query heads cannot be shared out evenly among 4"),
    ],
)
def test_a_wrong_configuration_is_refused(field, message):
    with pytest.raises(Exception, match=message):
        small_config(**field)


def test_auto_classes_build_models():
    config = small_config("K=V")
    assert type(AutoModelForCausalLM.from_config(config)) is TwofoldForCausalLM
    assert type(AutoModel.from_config(config)) is TwofoldModel


LOAD = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(FOLDER)
print(type(AutoConfig.from_pretrained(FOLDER)).__name__, type(model).__name__, model.config.variant,
      type(AutoModel.from_pretrained(FOLDER)).__name__, sum(p.double().sum().item() for p in model.parameters()))
"""


@pytest.mark.parametrize(
    "first",
    [
        "import transformers\nimport twofold",
        "import twofold\nfrom transformers import LlamaForCausalLM",  # whose file imports the Auto classes half-way
    ],
    ids=["after", "before, beside a model"],
)
def test_auto_classes_load_in_a_fresh_process(first, tmp_path):
    model = small_model("K=V GQA-2")
    model.save_pretrained(tmp_path)
    script = f"{first}\nFOLDER = {str(tmp_path)!r}\n{LOAD}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *names, total = done.stdout.strip().rsplit(maxsplit=1)
    assert names == ["TwofoldConfig TwofoldForCausalLM K=V GQA-2 TwofoldModel"]
    assert float(total) == sum(p.sum().item() for p in model.parameters())


@pytest.mark.parametrize(("name", "called"), [("window", "sliding_window"), ("layers", "num_hidden_layers")])
def test_a_field_under_another_name_is_refused_and_not_kept_unread(name, called):
    with pytest.raises(ValueError, match=f"{name} is called {called} in a configuration"):
        TwofoldConfig(**{name: 3})


@pytest.mark.parametrize("style", [("paper", "none"), ("modern", "none")], ids="/".join)
def test_models_from_before_activations_and_offsets_load_and_keep_their_rows(style, tmp_path):
    model, ids = small_model("QKV", *style), random_ids(2, 7)
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored.pop("activation"), stored.pop("position_offset")) == ("gelu" if style[0] == "paper" else "silu", 0)
    (tmp_path / "config.json").write_text(json.dumps(stored))
    loaded = TwofoldForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-12)
    assert fingerprint(loaded) == fingerprint(model)
    assert not {"activation", "position_offset"} & fingerprint(model).keys()
    told = fingerprint(small_model("QKV", "paper", "none", activation="relu", position_offset=2))
    assert (told["activation"], told["position_offset"]) == ("relu", "2")
