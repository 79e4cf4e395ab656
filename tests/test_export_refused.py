"""What no target computes is refused with the reason and the nearest form, and leaves nothing behind."""

import json
from dataclasses import replace

import pytest
import torch

from small_exports import exportable
from small_models import small_config, small_model
from twofold.export import export as export_module
from twofold.export.deepseek import reasons as deepseek_reasons
from twofold.export.export import RECORD, export_model
from twofold.export.llama import reasons as llama_reasons
from twofold.export.target import Padding, padding
from twofold.models.load import load_model

REFUSED = [
    # variant, other fields, format, words of the reason, words of the nearest form
    ("K=V", {}, "deepseek", "derotated rows", "K=V decoupled"),
    ("K=V on_read", {}, "deepseek", "on_read rows", "K=V decoupled"),
    ("QKV", {}, "deepseek", "keys and values apart", "or llama"),
    ("K=V", {}, "llama", "derotated values", "K=V on_read with rotary full"),
    ("K=V kept", {"rotary": "partial", "rotary_dims": 4}, "llama", "turns 4 of 10 dims", "rotary full"),
    ("K=V decoupled", {"rotary": "partial"}, "llama", "a rotary key beside", "use deepseek"),
    ("MLA", {"rotary": "partial"}, "llama", "a rotary key beside", "use deepseek"),
    ("QKV", {"rotary": "partial"}, "llama", "turns 4 of 10 dims", "rotary full"),
    ("QKV", {"rotary": "none"}, "llama", "learned absolute positions", "rotary full"),
    ("QKV", {"block": "paper"}, "llama", "LayerNorm, GELU and biases", "block modern"),
    ("QKV", {"qkv_bias": True}, "llama", "have biases (qkv_bias)", "qkv_bias false"),
    ("QKV", {"qk_norm": True}, "llama", "each head (qk_norm)", "qk_norm false"),
    ("QKV", {"softcap": 30.0}, "llama", "softcap 30", "softcap 0"),
    ("QKV", {"sinks": True}, "llama", "have sinks", "sinks false"),
    ("QKV", {"sliding_window": 7}, "llama", "a window of 7 tokens", "no window"),
    ("K=V decoupled", {"rotary": "partial", "sliding_window": 7}, "deepseek", "a window of 7 tokens", "no window"),
    ("QKV linear", {"rotary": "none"}, "llama", "a state and no rows", "QKV, GQA-g"),
    ("QKV linear", {"rotary": "none"}, "deepseek", "a state and no rows", "K=V decoupled"),
    ("nonlinear-WQ", {"head_dim": 2}, "llama", "a small network", "drop nonlinear-WQ"),
    ("GQA-2 CLA-2", {}, "llama", "the rows of others", "drop the CLA"),
    ("QKV", {"hidden_size": 13}, "llama", "13 is none of 6", "multiple of its heads"),
    ("MLA on_read", {}, "deepseek", "turned when they are made of the latent", "MLA with a rotary key"),
    ("MLA on_read", {}, "llama", "are made of a latent", "as deepseek"),
    ("MLA on_read", {}, "gguf", "turned when they are made of the latent", "MLA with a rotary key"),
    ("QKV", {"layer_variants": ["QKV", "MQA"]}, "llama", "differ (1 × QKV, 1 × MQA)", "one variant"),
    ("QKV", {"layer_variants": ["QKV", "MQA"]}, "gguf", "differ (1 × QKV, 1 × MQA)", "one variant"),
    ("MLA", {"layer_latents": [7, 11]}, "deepseek", "latents of 7 and 11 dims", "one variant and latent"),
    (
        "MLA on_read",
        {"layer_latents": [7, 11]},
        "gguf",
        "latents of 7 and 11 dims",
        "K=V decoupled or MLA for deepseek",
    ),
    (
        "K=V decoupled",
        {"rotary_pairs": [0, 1, 4]},
        "deepseek",
        "pairs 0, 1, 4 of a head's 5",
        "a rotary key of 10 dims",
    ),
    ("K=V decoupled", {"rotary_pairs": [1, 3]}, "gguf", "pairs 1, 3 of a head's 5", "use pairs 0, s, 2s"),
]


@pytest.mark.parametrize(("variant", "others", "form", "reason", "nearest"), REFUSED)
def test_refused_with_reason_and_nearest_form(variant, others, form, reason, nearest, tmp_path):
    model = small_model(variant, **{"hidden_size": 12, **others})
    with pytest.raises(ValueError, match=f"as {'gguf|llama' if form == 'gguf' else form} without loss") as refused:
        export_model(model, form, tmp_path / "out")
    assert reason in str(refused.value)
    assert nearest in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_every_reason_is_given_at_once():
    sizes = small_config("K=V", "paper", "none", qk_norm=True).architecture
    assert len(list(llama_reasons(sizes))) == 5  # block, positions, norms, width, derotated
    assert not list(
        llama_reasons(
            replace(sizes, variant="QKV", block="modern", activation="", rotary="full", qk_norm=False, width=12)
        )
    )
    assert len(list(deepseek_reasons(sizes))) == 4


def test_padding_has_to_hold_the_row(tmp_path):
    model = exportable("K=V GQA-2 decoupled")
    for pad in (Padding(19, 64), Padding(20, 2), Padding(20, 5)):
        with pytest.raises(ValueError, match="20\\+4 numbers"):
            export_model(model, "deepseek", tmp_path / "out", pad)
    with pytest.raises(ValueError, match="256\\+64 or 512\\+64"):
        padding("300+64")
    with pytest.raises(ValueError, match="leave it out"):
        export_model(exportable("QKV"), "llama", tmp_path / "out", "256+64")
    with pytest.raises(ValueError, match="f16 is for gguf"):
        export_model(model, "deepseek", tmp_path / "out", kind="f16")
    with pytest.raises(ValueError, match="f32, f16, q8_0"):
        export_model(model, "gguf", tmp_path / "out", kind="q4")
    with pytest.raises(ValueError, match="deepseek or gguf or llama"):
        export_model(model, "onnx", tmp_path / "out")


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ValueError, match="is not empty: name a new folder"):
        export_model(exportable("QKV"), "llama", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_failed_comparison_writes_nothing(tmp_path, monkeypatch):
    """With weights that were changed on the way, as a fault in the mathematics would."""
    right = export_module.llama

    def wrong(model, untied):
        target = right(model, untied)
        target.tensors["model.layers.1.self_attn.v_proj.weight"] = torch.zeros(60, 12)
        return target

    monkeypatch.setattr(export_module, "llama", wrong)
    with pytest.raises(ValueError, match="nothing was written"):
        export_model(exportable("QKV").float(), "llama", tmp_path / "out")
    assert not list(tmp_path.iterdir())
    record = export_model(exportable("QKV").float(), "llama", tmp_path / "out", checked=False)
    assert json.loads((tmp_path / "out" / RECORD).read_text())["check"] is record.check is None


def test_a_missing_tensor_is_an_error_without_a_check(tmp_path, monkeypatch):
    right = export_module.llama

    def short(model, untied):
        target = right(model, untied)
        del target.tensors["model.layers.1.self_attn.v_proj.weight"]
        return target

    monkeypatch.setattr(export_module, "llama", short)
    with pytest.raises(RuntimeError, match="v_proj"):
        export_model(exportable("QKV").float(), "llama", tmp_path / "out", checked=False)
    assert not list(tmp_path.iterdir())


def test_the_model_itself_stays_as_it_is(tmp_path):
    model = exportable("K=V GQA-2 decoupled").float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_model(model, "deepseek", tmp_path / "out", "256+64")
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(ValueError, match="'deepseek_v3' model"):
        load_model(tmp_path / "out")
