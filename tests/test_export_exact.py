"""What is exported computes the same function: logits in float64 and float32, greedy text, and bytes really cached."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from every_variant import EVERY, every_model
from small_exports import DEEPSEEK, LLAMA, exportable, in_float64, loaded
from small_models import HEADS, POSITIONS, random_ids
from twofold.export.check import storage_bytes
from twofold.export.deepseek import deepseek
from twofold.export.export import export_model
from twofold.export.llama import llama
from twofold.export.target import VLLM_PADDINGS, Padding

EXACT = 1e-10
EXPORTED = {
    deepseek: {
        "K=V decoupled, rotary_dims 8",
        "K=V MQA decoupled, rotary_dims 8",
        "K=V rank-3 decoupled, rotary_dims 8",
        "K=V decoupled, rotary_dims 8, scale_exponent 0.75",
        "MLA, rotary_dims 8, latent_dims 24",
        "MLA tied-2, rotary_dims 8, latent_dims 24",
        "MLA, rotary_dims 8, latent_dims 24, scale_exponent 1.0",
        "GQA-2 MLA, rotary_dims 8, latent_dims 24",
        "MQA MLA, rotary_dims 8, latent_dims 24, latent_norm False",
        "MLA, latent_dims 16, rotary_pairs [3, 0, 2, 1]",
        "K=V decoupled, rotary_dims 8, latent_norm False",
        "K=V GQA-3 decoupled, rotary_pairs [0, 1, 3, 2], latent_norm False",
    },
    llama: {
        "QKV",
        "K=V on_read",
        "Q=K=V on_read",
        "no-WQ",
        "no-WV",
        "simplified on_read",
        "QKV rank-3",
        "QKV, scale_exponent 0.0",
        "QKV, scaled_embeddings True, tie_word_embeddings False",
    },
}
"""Of the models that the tests of layers go through, those that a format takes; it refuses all others."""


def difference(model, target, length=23):
    """Largest difference of logits in float64, at positions that begin at 0."""
    ids = random_ids(2, length)
    with in_float64(), torch.no_grad():
        return (model(ids).logits - loaded(target)(ids).logits).abs().max().item()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("variant", DEEPSEEK)
def test_deepseek_is_exact(variant, tied):
    model = exportable(variant, tie_word_embeddings=tied)
    target = deepseek(model)
    assert target.config.tie_word_embeddings == tied
    assert difference(model, target) < EXACT


@pytest.mark.parametrize("pad", VLLM_PADDINGS)
@pytest.mark.parametrize("variant", DEEPSEEK)
def test_the_row_sizes_of_vllm_are_exact(variant, pad):
    model = exportable(variant)
    target = deepseek(model, pad)
    assert (target.config.kv_lora_rank, target.config.qk_rope_head_dim) == pad
    assert not target.config.tie_word_embeddings
    assert difference(model, target) < EXACT


@settings(max_examples=15)
@given(
    variant=st.sampled_from(DEEPSEEK[1:]),
    rotary=st.sampled_from([2, 4, 6, 10]),
    latent_more=st.integers(0, 37),
    pairs_more=st.integers(0, 11),
    exponent=st.sampled_from([0.5, 0.37]),
)
def test_any_padding_is_exact(variant, rotary, latent_more, pairs_more, exponent):
    model = exportable(variant, rotary_dims=rotary, scale_exponent=exponent, num_hidden_layers=1)
    row = model.config.architecture.row_layout
    own = row.head_width * model.config.architecture.kv_heads
    pad = Padding(own + latent_more, rotary + 2 * pairs_more)
    assert difference(model, deepseek(model, pad), length=11) < EXACT


def test_a_latent_that_is_nearly_zero_shows_the_epsilon():
    """Padding keeps ε where it was: with small latents, another one would change logits."""
    model = exportable("K=V GQA-2 decoupled")
    with torch.no_grad():
        for block in model.model.layers:
            block.attention.projections.k_proj.weight.mul_(1e-3)
    target = deepseek(model, Padding(71, 10))
    assert difference(model, target) < EXACT
    weight = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    target.tensors[weight] = target.tensors[weight] * 2  # what RMSNorm would hide if ε did not count
    assert difference(model, target) > 1e-3


@pytest.mark.parametrize("variant", [*LLAMA, "Q=K diagonal", "K=V on_read diagonal", "Q=K=V on_read diagonal"])
def test_llama_is_exact(variant):
    model = exportable(variant, rope_theta=500.0, scale_exponent=0.4)
    assert difference(model, llama(model)) < EXACT


@pytest.mark.parametrize(
    ("variant", "others"),
    [
        ("QKV rank-5", {}),
        ("GQA-2", {"fused_projections": True}),
        ("Q=K", {"scaled_embeddings": True}),
        ("QKV tied-2", {"tie_word_embeddings": False}),
        ("no-WQ", {"head_dim": 2}),
        ("K=V GQA-2 decoupled rank-7", {"rotary": "partial", "rotary_dims": 6, "hidden_size": 13}),
        ("MLA tied-2", {"rotary": "partial", "rotary_dims": 6, "latent_dims": 31, "scaled_embeddings": True}),
    ],
)
def test_what_else_multiplies_out(variant, others):
    model = exportable(variant, **others)
    make = deepseek if "rotary" in others else llama
    assert difference(model, make(model)) < EXACT


@pytest.mark.parametrize("name", EVERY)
def test_everything_is_exact_or_refused(name):
    """Of all that a model can be, nothing is exported as something else."""
    model = every_model(name, hidden_size=48)
    for make, taken in EXPORTED.items():
        if name in taken:
            assert difference(model, make(model), length=13) < EXACT
        else:
            with pytest.raises(ValueError, match="without loss"):
                make(model)


@pytest.mark.parametrize("variant", DEEPSEEK)
@pytest.mark.parametrize("pad", [None, Padding(67, 10)])
def test_written_in_float32_and_read_back(variant, pad, tmp_path):
    """Through the folder: logits, greedy tokens, and the bytes of the target's own cache."""
    model = exportable(variant).float()
    record = export_model(model, "deepseek", tmp_path / "out", pad)
    assert record.check.max_logit_difference < 1e-4
    assert record.check.greedy_equal
    sizes = model.config.architecture
    assert record.check.cache_numbers == record.cache_numbers == sizes.row_layout.numbers(sizes.kv_heads)
    assert (
        record.check.target_cache_numbers == record.target_cache_numbers == (sum(pad) if pad else record.cache_numbers)
    )
    assert record.keeps_saving == (pad is None)


@pytest.mark.parametrize("variant", LLAMA)
def test_llama_written_and_read_back(variant, tmp_path):
    model = exportable(variant).float()
    record = export_model(model, "llama", tmp_path / "out")
    assert record.check.max_logit_difference < 1e-4
    assert record.check.greedy_equal
    assert record.check.target_cache_numbers == record.target_cache_numbers
    shares = "V" in variant and "K=V" in variant
    assert record.keeps_saving == (not shares)
    assert any("saves no memory" in note for note in record.notes) == shares


def test_decoding_step_by_step_gives_the_same_logits_and_bytes(tmp_path):
    """The target's cache, token by token, holds what it says: storages of (g·d + r) numbers per token and layer."""
    model = exportable("K=V GQA-2 decoupled").float()
    export_model(model, "deepseek", tmp_path / "out", checked=False)
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids, cache, steps = random_ids(1, 17), None, []
    with torch.no_grad():
        for position in range(17):
            outputs = made(ids[:, position : position + 1], cache=cache, use_cache=True)
            cache = outputs.cache
            steps.append(outputs.logits)
        torch.testing.assert_close(torch.cat(steps, 1), model(ids).logits, rtol=0, atol=1e-4)
    assert storage_bytes(cache) == 2 * 17 * (2 * 10 + 4) * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_weights_bits(dtype, tmp_path):
    model = exportable("K=V GQA-2 decoupled").to(dtype)
    record = export_model(model, "deepseek", tmp_path / "out")
    assert record.check.max_logit_difference < 1e-4
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert made.dtype == dtype
    assert torch.equal(made.model.layers[1].mlp.up_proj.weight, model.model.layers[1].mlp.up_proj.weight)
    assert made.config.num_attention_heads == HEADS
    assert made.config.max_position_embeddings == POSITIONS
