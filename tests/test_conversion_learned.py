"""GPT-2 and OPT as they were released: their files and configurations, padding, and rows that no token reads."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import run
from small_checkpoints import CHECKPOINTS, VOCABULARY, checkpoint, equal_tensors
from twofold.analysis.costs import measured_parameters, parameters
from twofold.conversion.check import compare
from twofold.conversion.convert import convert_in, convert_out
from twofold.folding.fold import fold
from twofold.kernels import matvec, native
from twofold.models import stepping
from twofold.models.fusing import fuse
from twofold.models.load import load_model

LEARNED = [name for name in CHECKPOINTS if name.startswith(("gpt2", "opt"))]
BUFFERS = ("attn.bias", "attn.masked_bias")
GPT2_RELEASED = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 1,
    "embd_pdrop": 0.1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 97,
    "n_embd": 22,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 97,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": VOCABULARY,
}
OPT_RELEASED = {
    "_remove_final_layer_norm": False,
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "eos_token_id": 2,
    "ffn_dim": 31,
    "hidden_size": 24,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 97,
    "model_type": "opt",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "prefix": "</s>",
    "torch_dtype": "float16",
    "use_cache": True,
    "vocab_size": VOCABULARY,
    "word_embed_proj_dim": 24,
}


def released(family, folder):
    """A folder with the fields and the names of tensors that the first releases had."""
    if family == "gpt2":  # no prefix, and constants beside the weights
        model = checkpoint("gpt2 as released", n_inner=None, resid_pdrop=0.1, eos_token_id=2)
        state = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
        constants = {f"h.{layer}.{name}": torch.ones(1, 1, 97, 97).tril() for layer in range(2) for name in BUFFERS}
    else:
        model = checkpoint("opt", bos_token_id=2, eos_token_id=2).half()
        state, constants = dict(model.state_dict()), {}
    state.pop("lm_head.weight")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2_RELEASED if family == "gpt2" else OPT_RELEASED))
    save_file(state | constants, folder / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_a_released_folder_there_and_back(family, tmp_path, capsys):
    model = released(family, tmp_path / "theirs")
    done = run(capsys, "convert", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours"), "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["check"]["within_twice_own"] is True
    assert (record["from"], record["variant"], record["dtype"]) == (family, "QKV", str(model.dtype)[6:])
    made = load_model(tmp_path / "ours").config.architecture
    expected = ("gelu_tanh", 0, 88, 0.1) if family == "gpt2" else ("relu", 2, 31, 0.1)
    assert (made.activation, made.position_offset, made.mlp, made.dropout) == expected
    explained = run(capsys, "explain", str(tmp_path / "ours"), "--json")
    assert explained.code == 0, explained.err
    done = run(capsys, "convert", str(tmp_path / "ours"), "--to", family, "--out", str(tmp_path / "back"))
    assert done.code == 0, done.err
    stored = load_file(tmp_path / "back" / "model.safetensors")
    assert equal_tensors(stored, {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"})
    before, after = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("theirs", "back"))
    gone = {"torch_dtype", "n_ctx", "task_specific_params", "activation_dropout", "prefix", "_remove_final_layer_norm"}
    changed = {name for name in before if before[name] != after.get(name)} - gone
    assert changed <= {"attn_pdrop", "embd_pdrop"}  # which are no part of a decoder of ours


def test_pickled_weights_are_not_opened(tmp_path, capsys):
    model = released("opt", tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "theirs" / "pytorch_model.bin")
    done = run(capsys, "convert", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "holds no .safetensors file, and pickled weights are not opened" in done.err
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("name", LEARNED)
def test_left_padding_changes_no_real_token(name):
    model = checkpoint(name).double()
    made = convert_in(model)
    ids_BT, mask_BT = torch.randint(VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(5)), torch.ones(3, 11)
    for sequence, pads in enumerate((0, 1, 6)):
        mask_BT[sequence, :pads] = 0
    # Of GPT-2 transformers counts positions from the padding on, unless it is told.
    at_BT = (mask_BT.cumsum(dim=1) - 1).clamp(min=0).long()
    told = {"position_ids": at_BT} if name.startswith("gpt2") else {}
    with torch.no_grad():
        expected, found = (one(ids_BT, attention_mask=mask_BT.long(), **told).logits for one in (model, made))
    real = mask_BT.bool()
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-10)
    options = {"max_new_tokens": 13, "do_sample": False, "pad_token_id": 0, "attention_mask": mask_BT.long()}
    assert torch.equal(model.generate(ids_BT, **options), made.generate(ids_BT, **options))


@pytest.mark.skipif(not matvec.wins(), reason=native.why_not() or "no vector instructions")
@pytest.mark.parametrize("name", LEARNED)
def test_generation_takes_the_native_step(name, monkeypatch):
    model = checkpoint(name, **({"n_embd": 24, "n_head": 3} if name.startswith("gpt2") else {}))  # 8 dims to a head
    made, steps, taken = convert_in(model), [], stepping.decoder_step
    monkeypatch.setattr(stepping, "decoder_step", lambda *given, **named: steps.append(1) or taken(*given, **named))
    ids_BT = torch.arange(3, 10)[None]
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids_BT)}
    assert torch.equal(model.generate(ids_BT, **options), made.generate(ids_BT, **options))
    assert len(steps) == 8


def test_the_first_positions_stand_behind_rows_that_no_token_reads():
    model, ids_BT = checkpoint("opt").double(), torch.arange(VOCABULARY)[None]
    usual = convert_in(model)
    assert usual.model.embed_positions.weight.shape == (99, 24)
    with torch.no_grad():
        model.model.decoder.embed_positions.weight[:2] = 7.0
        made = convert_in(model)
        assert torch.equal(made(ids_BT).logits, usual(ids_BT).logits)
        model.model.decoder.embed_positions.weight[2] = 7.0
        assert not torch.equal(convert_in(model)(ids_BT).logits, usual(ids_BT).logits)
    back = convert_out(made, "opt").model.decoder.embed_positions.weight
    assert torch.equal(back[:2], torch.full((2, 24), 7.0, dtype=torch.float64))


def test_the_last_position_is_the_originals_and_no_further_one_is_read():
    model = checkpoint("opt").double()
    made, ids_BT = convert_in(model), torch.arange(97)[None] % VOCABULARY
    with torch.no_grad():
        torch.testing.assert_close(made(ids_BT).logits, model(ids_BT).logits, rtol=0, atol=1e-10)
        cache = made(ids_BT).cache
        for given in ({"input_ids": ids_BT[:, :98].repeat(1, 2)}, {"input_ids": ids_BT[:, :1], "cache": cache}):
            with pytest.raises(ValueError, match="past the 97 learned positions"):
                made(**given)


@pytest.mark.parametrize("name", LEARNED)
def test_counts_are_the_models(name):
    made = convert_in(checkpoint(name))
    assert measured_parameters(made) == parameters(made.config.architecture)
    assert made.num_parameters() == checkpoint(name).num_parameters()


@pytest.mark.parametrize("name", ["gpt2 as released", "opt"])
def test_folded_and_fused_models_convert_alike(name):
    model = checkpoint(name)
    plain = convert_in(model).state_dict()
    assert equal_tensors(convert_out(fuse(convert_in(model)), model.config.model_type).state_dict(), model.state_dict())
    fold(model)
    made = convert_in(model)
    assert equal_tensors(made.state_dict(), plain)
    assert compare(checkpoint(name), made).is_within
