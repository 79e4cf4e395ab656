"""Families into Twofold's decoder and back: equal logits, equal bits, equal tokens."""

import pytest
import torch

from small_checkpoints import CHECKPOINTS, VOCABULARY, checkpoint, equal_tensors
from twofold.conversion.check import compare
from twofold.conversion.convert import convert_in, convert_out, families_for
from twofold.conversion.families import FAMILIES
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fusing import fuse

EVERY = pytest.mark.parametrize("name", CHECKPOINTS)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logits_are_the_originals(name, dtype):
    model = checkpoint(name).to(dtype)
    found = compare(model, convert_in(model))
    assert 0 < found.own_difference < 1e-5
    assert found.is_within
    assert not found.is_fault
    assert found.largest_logit > 0.5


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_there_and_back_is_bit_equal(name, dtype):
    model = checkpoint(name).to(dtype)
    made = convert_in(model)
    back = convert_out(made, model.config.model_type)
    assert type(back) is type(model)
    assert equal_tensors(model.state_dict(), back.state_dict())
    assert equal_tensors(made.state_dict(), convert_in(back).state_dict())
    before, after = model.config.to_dict(), back.config.to_dict()
    changed = {field for field in before if before[field] != after.get(field)}
    assert changed <= {"dtype", "embd_pdrop", "attn_pdrop", "n_inner", "max_window_layers"}


@EVERY
def test_greedy_tokens_are_equal_with_caches(name):
    model = checkpoint(name)
    made = convert_in(model)
    ids_BT = torch.randint(VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(3))
    options = {"max_new_tokens": 17, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids_BT)}
    assert torch.equal(model.generate(ids_BT, **options), made.generate(ids_BT, **options))


@pytest.mark.parametrize("name", ["llama MHA untied", "qwen2", "qwen3, head dim 10", "gpt2", "opt"])
def test_every_weight_matters(name):
    """A changed tensor of theirs changes the logits of ours, so that none was dropped or filled in."""
    model = checkpoint(name)
    ids_BT = torch.arange(23)[None]
    with torch.no_grad():
        usual = convert_in(model)(ids_BT).logits
        for parameter in model.parameters():
            kept = parameter.clone()
            parameter[..., -1:].add_(0.5)
            parameter[:1].add_(0.25)
            changed = convert_in(model)(ids_BT).logits
            parameter.copy_(kept)
            assert not torch.equal(changed, usual)


def test_copies_share_no_memory():
    model = checkpoint("gpt2")
    made = convert_in(model)
    back = convert_out(made, "gpt2")
    pointers = [{p.data_ptr() for p in one.parameters()} for one in (model, made, back)]
    assert len(set().union(*pointers)) == sum(map(len, pointers))


def test_tied_stays_one_parameter():
    made = convert_in(checkpoint("llama"))
    assert made.lm_head.weight is made.model.embed_tokens.weight
    back = convert_out(made, "llama")
    assert back.lm_head.weight is back.model.embed_tokens.weight
    assert made.config.variant == "GQA-2"


def test_stacked_projections_are_taken_apart():
    made = convert_in(checkpoint("qwen2"))
    back = convert_out(fuse(made), "qwen2")
    assert equal_tensors(checkpoint("qwen2").state_dict(), back.state_dict())


def test_a_model_can_change_its_family_where_both_compute_the_same():
    model = checkpoint("llama")
    made = convert_in(model)
    assert families_for(made.config) == ["llama", "mistral"]
    other = convert_out(made, "mistral")
    assert compare(model, other).max_logit_difference == 0
    assert isinstance(convert_in(other), TwofoldForCausalLM)


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_name_every_tensor_once(family):
    lines = list(FAMILIES[family].names.lines(2, tied=False))
    theirs, ours = [line.theirs for line in lines], [name for line in lines for name in line.ours]
    assert len(set(theirs)) == len(theirs)
    assert len(set(ours)) == len(ours)


def test_the_check_finds_exchanged_matrices():
    model = checkpoint("llama MHA untied")
    made = convert_in(model)
    with torch.no_grad():
        seam = made.model.layers[1].attention.projections
        seam.k_proj.weight.copy_(seam.v_proj.weight.clone())
    found = compare(model, made)
    assert found.is_fault
    assert not found.is_within
