"""A GGUF file holds the model, and llama.cpp, where it is installed, computes the same from a cache without values."""

import json
import re

import numpy as np
import pytest
import torch

from command_line import run
from small_models import random_ids, randomise, small_model
from twofold.data.byte_tokens import END, VOCABULARY, byte_tokenizer, ended_by_end
from twofold.export.export import GGUF_FILE, export_model
from twofold.export.gguf_file import gguf as gguf_target
from twofold.models.load import load_model

gguf = pytest.importorskip("gguf")

TEXT = "def é main():\n\tif x ~~ '1  2':\n日本"


def exportable(variant="K=V GQA-2 decoupled", **others):
    """In float32, with rows that q8_0 takes (multiples of 32), and weights small enough for half precision."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "rotary_dims": 8, "intermediate_size": 96}
    ends = {"vocab_size": VOCABULARY, "bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    model = small_model(variant, **{"rotary": "partial", **sizes, **ends, **others}).float()
    randomise(model, 0.15)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    exportable().save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    return folder


def stored(path):
    return {tensor.name: torch.from_numpy(np.array(tensor.data)) for tensor in gguf.GGUFReader(path).tensors}


def test_the_file_holds_sizes_and_weights(tmp_path):
    model = exportable(norm_eps=1e-6)
    record = export_model(model, "gguf", tmp_path / "out", checked=False)
    assert (record.model_type, record.dtype, record.target_cache_numbers) == ("deepseek2", "f32", 2 * 16 + 8)
    fields = gguf.GGUFReader(tmp_path / "out" / GGUF_FILE).fields
    expected = {
        "attention.key_length": 40,
        "attention.value_length": 32,
        "attention.key_length_mla": 24,
        "attention.value_length_mla": 16,
        "attention.kv_lora_rank": 32,
        "attention.q_lora_rank": 0,
        "attention.head_count_kv": 1,
        "rope.dimension_count": 8,
        "leading_dense_block_count": 2,
    }
    assert {name: fields[f"deepseek2.{name}"].contents() for name in expected} == expected
    tensors = stored(tmp_path / "out" / GGUF_FILE)
    seam = model.model.layers[1].attention.projections
    assert torch.equal(tensors["blk.1.attn_kv_a_mqa.weight"][:32], seam.k_proj.weight)
    assert torch.equal(tensors["blk.1.ffn_down.weight"], model.model.layers[1].mlp.down_proj.weight)
    selected_HDC = torch.eye(32).unflatten(0, (2, 16)).repeat_interleave(2, dim=0)
    assert torch.equal(tensors["blk.1.attn_v_b.weight"], selected_HDC)
    assert torch.equal(tensors["blk.1.attn_k_b.weight"], selected_HDC.mT)
    assert "output.weight" not in tensors


def test_the_latent_makes_up_for_the_epsilon():
    """RMSNorm with the ε of all norms, of what the file holds, is our norm with 1e-6."""
    model = exportable(norm_eps=1e-3).double()
    weight = gguf_target(model).tensors["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"][:32]
    seam = model.model.layers[0].attention.projections
    x = torch.randn(5, 64, dtype=torch.float64) * 1e-2
    theirs = torch.nn.functional.rms_norm(x @ weight.mT, (32,), seam.content_norm.weight, 1e-3)
    torch.testing.assert_close(theirs, seam.content_norm(seam.k_proj(x)), rtol=1e-12, atol=1e-12)


def test_other_models_and_tokenizers_are_refused(tmp_path):
    import tokenizers

    with pytest.raises(ValueError, match="use K=V decoupled"):
        export_model(small_model("K=V"), "gguf", tmp_path / "out")
    with pytest.raises(ValueError, match="rotary full"):
        export_model(small_model("GQA-2", rotary="partial"), "gguf", tmp_path / "out")
    model = exportable()
    model.save_pretrained(tmp_path / "model")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<|end|>": END}, unk_token="a"))
    ended_by_end(words).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="not byte-level BPE"):
        export_model(load_model(tmp_path), "gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def learnt_tokenizer(alone: bool, text: str):
    """Byte-level BPE of 300 tokens; `alone`: every digit by itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), before]) if alone else before
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text] * 9, trainer)
    return ended_by_end(made)


@pytest.mark.parametrize("alone", [False, True], ids=["as GPT-2 splits", "digits by themselves"])
def test_llama_cpp_reads_text_in_the_same_tokens(alone, tmp_path):
    """Also those that were added to a vocabulary, which are found before text is split."""
    llama_cpp = pytest.importorskip("llama_cpp")
    text = "In 1999, 12345 people don't  read 1999 of 12345 ;\n\n they do, 1999 times"
    tokenizer = learnt_tokenizer(alone, text)
    tokenizer.add_tokens(["<a tool>", "1999 times"])
    text += ", 1999<a tool> times"
    ends = {"vocab_size": 307, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    exportable(**ends).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    export_model(load_model(tmp_path), "gguf", tmp_path / "out", checked=False)
    llama = llama_cpp.Llama(str(tmp_path / "out" / GGUF_FILE), vocab_only=True, verbose=False)
    try:
        found = llama.tokenize(text.encode(), add_bos=False)
    finally:
        llama.close()
    assert found == tokenizer(text, add_special_tokens=False).input_ids
    added = tokenizer.get_added_vocab()
    assert any("99" in token for token in set(tokenizer.get_vocab()) - set(added)) != alone
    assert {added["<a tool>"], added["1999 times"]} <= set(found)


def test_options_that_change_tokens_are_refused(tmp_path):
    from tokenizers import Tokenizer

    exportable(vocab_size=300).save_pretrained(tmp_path / "model")
    whole = json.loads(learnt_tokenizer(False, "some text").backend_tokenizer.to_str())
    whole["model"]["ignore_merges"] = True
    ended_by_end(Tokenizer.from_str(json.dumps(whole))).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="ignore_merges"):
        export_model(load_model(tmp_path), "gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("variant", "others"),
    [
        ("K=V GQA-2 decoupled", {}),
        ("K=V decoupled", {"tie_word_embeddings": False, "norm_eps": 1e-6}),
        ("K=V MQA decoupled", {"scale_exponent": 0.4, "rope_theta": 500.0}),
        ("MLA", {"latent_dims": 48}),
    ],
)
def test_llama_cpp_computes_the_same_and_caches_no_values(variant, others, tmp_path):
    pytest.importorskip("llama_cpp")
    model = exportable(variant, **others)
    found = export_model(model, "gguf", tmp_path / "out").check
    assert found.max_logit_difference < 1e-4
    assert found.greedy_equal
    sizes = model.config.architecture
    row = sizes.row_layout.numbers(sizes.kv_heads)
    assert found.cache_numbers == row
    assert found.target_cache_numbers == pytest.approx(row, rel=2e-3)  # its log has two decimals of a MiB
    (line,) = found.engine_log
    assert re.search(r"V \(f32\): +0.00 MiB", line)


@pytest.mark.parametrize("variant", ["QKV", "GQA-2", "MQA", "Q=K", "QKV rank-9"])
def test_llama_cpp_computes_models_with_keys_and_values(variant, tmp_path):
    pytest.importorskip("llama_cpp")
    model = exportable(variant, rotary="full", rotary_dims=0, rope_theta=500.0, scale_exponent=0.4, norm_eps=1e-3)
    record = export_model(model, "gguf", tmp_path / "out")
    found, row = record.check, 2 * model.config.architecture.kv_heads * 16
    assert record.model_type == "llama"
    assert found.max_logit_difference < 1e-4
    assert found.greedy_equal
    assert record.target_cache_numbers == found.cache_numbers == row
    assert found.target_cache_numbers == pytest.approx(row, rel=2e-3)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_a_latent_without_a_norm_stays_float32(kind, tmp_path):
    """Its weights are far below the sizes that half precision writes with all its digits."""
    pytest.importorskip("llama_cpp")
    model = exportable(latent_norm=False)
    record = export_model(model, "gguf", tmp_path / "out", kind=kind)
    assert record.check.max_logit_difference < (1e-4 if kind == "f32" else record.check.tolerance)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "out" / GGUF_FILE).tensors}
    latent = tensors["blk.1.attn_kv_a_mqa.weight"]
    assert latent.tensor_type == gguf.GGMLQuantizationType.F32
    assert abs(latent.data[:32]).max() < 6e-6
    assert any("stay float32" in note for note in record.notes)


@pytest.mark.parametrize(("kind", "item_bits"), [("f16", 16), ("q8_0", 8.5)])
def test_smaller_types(kind, item_bits, tmp_path):
    pytest.importorskip("llama_cpp")
    record = export_model(exportable(), "gguf", tmp_path / "out", kind=kind)
    assert 0 < record.check.max_logit_difference < (0.01 if kind == "f16" else 0.2)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "out" / GGUF_FILE).tensors}
    assert tensors["blk.0.ffn_up.weight"].n_bytes * 8 == 96 * 64 * item_bits
    narrow = tensors["blk.0.attn_k_b.weight"]  # rows of 16 numbers, which q8_0 has no blocks for
    assert narrow.tensor_type == gguf.GGMLQuantizationType.F16


def test_the_command_writes_a_file_that_reads_and_writes_text(saved, capsys, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    out = tmp_path / "out"
    done = run(capsys, "export", str(saved), "--format", "gguf", "--out", str(out))
    assert done.code == 0, done.err
    assert "checked in llama.cpp" in done.out
    assert "greedy tokens equal; caches measured: 40 and 40 numbers" in done.out
    record = json.loads((out / "export.json").read_text())
    assert record["tokenizer"] is True
    assert set(record["versions"]) == {"gguf", "llama-cpp-python"}
    llama = llama_cpp.Llama(str(out / GGUF_FILE), n_ctx=256, n_threads=1, verbose=False)
    try:
        ids = llama.tokenize(TEXT.encode(), add_bos=False, special=False)
        assert ids == list(TEXT.encode())
        assert llama.detokenize(ids) == TEXT.encode()
        assert llama.token_eos() == END
        prompt = random_ids(1, 7)
        written = load_model(saved).generate(prompt, max_new_tokens=1, do_sample=False)[0, -1]
        llama.eval(prompt[0].tolist())
        assert llama.sample(temp=0.0) == int(written)
    finally:
        llama.close()


def test_trained_merges_are_the_same_in_llama_cpp(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    from twofold.data.corpus import Document
    from twofold.data.trained_tokenizer import trained_tokenizer

    words = "the cat sat on the mat, and the cats' hats; don't 12 345 return self.value\n\n    def it(): pass\n"
    tokenizer = trained_tokenizer(300, [Document("a.txt", (words * 9).encode())])
    exportable(vocab_size=300).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    export_model(load_model(tmp_path), "gguf", tmp_path / "out", checked=False)
    llama = llama_cpp.Llama(str(tmp_path / "out" / GGUF_FILE), n_ctx=256, n_threads=1, vocab_only=True, verbose=False)
    try:
        for text in (words, TEXT, "the  returns\n\n\n x1y22"):
            assert llama.tokenize(text.encode(), add_bos=False, special=False) == tokenizer(text).input_ids
    finally:
        llama.close()
