"""Which weights learn: the chosen ones alone, and adapters that are merged into what they were beside."""

from types import SimpleNamespace

import pytest
import torch

from every_variant import KINDS, VOCAB, every_model
from small_healing import original, student
from twofold.attention.projections import Projections
from twofold.healing import weights
from twofold.healing.weights import add_adapters, learning, merge_adapters, projection_names

RANK = 2
SHARED = ("K=V", "Q=K, partial, rotary_dims 4", "Q=K=V on_read", "K=V decoupled, rotary_dims 8")
GENERATING = ("QKV", "K=V", "K=V GQA-2, partial, rotary_dims 4, paper", "MLA, rotary_dims 8, latent_dims 24")


def teach(model):
    """Values in what adapters add, which is 0 at first."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def decoded(model, ids):
    """Logits of one step after another, with a cache."""
    cache, made = None, []
    with torch.no_grad():
        for place in range(ids.shape[1]):
            outputs = model(ids[:, place : place + 1], cache=cache, use_cache=True)
            cache = outputs.cache
            made.append(outputs.logits)
    return torch.cat(made, dim=1)


@pytest.mark.parametrize("name", KINDS)
def test_merged_equals_unmerged(name):
    model = every_model(name)
    ids = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    plain, names = logits_of(model, ids), list(model.state_dict())
    add_adapters(model, RANK)
    torch.testing.assert_close(logits_of(model, ids), plain, rtol=0, atol=0)
    teach(model)
    taught, stepped = logits_of(model, ids), decoded(model, ids)
    assert (taught - plain).abs().max() > 1e-3
    torch.testing.assert_close(stepped, taught, rtol=1e-8, atol=1e-8)
    merge_adapters(model)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(logits_of(model, ids), taught, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(decoded(model, ids), taught, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_matrix_has_one_adapter_for_all_its_roles(name):
    model = every_model(name)
    seams = [module for module in model.modules() if isinstance(module, Projections)]
    matrices = sum(len(seam.matrices) for seam in seams)
    add_adapters(model, RANK)
    assert sum("lora_A" in name for name, _ in model.named_parameters()) == matrices


@pytest.mark.parametrize("name", GENERATING)
def test_generation_with_adapters_is_that_of_the_merged(name):
    model = every_model(name).float()
    ids = torch.randint(VOCAB, (2, 5), generator=torch.Generator().manual_seed(1))
    how = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    model.generate(ids, **how)  # what a native step relies on is known now, and must be looked at again
    add_adapters(model, RANK)
    teach(model)
    with_adapters = model.generate(ids, **how)
    merge_adapters(model)
    assert torch.equal(model.generate(ids, **how), with_adapters)


def test_only_what_was_chosen_learns():
    model = student()
    with learning(model, "attention", 0, 0) as chosen:
        found = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert found == {name for name, _ in model.named_parameters() if ".attention." in name}
        assert chosen.trained == sum(model.get_parameter(name).numel() for name in found)
    assert all(parameter.requires_grad for parameter in model.parameters())
    with learning(model, "all", 0, 0) as chosen:
        assert chosen.trained == chosen.parameters == model.num_parameters()
    with learning(model, "attention", RANK, 0) as chosen:
        assert all(("lora_" in name) == parameter.requires_grad for name, parameter in model.named_parameters())
        assert chosen.parameters == model.num_parameters() - chosen.trained


def test_a_model_of_another_family_learns_in_its_attention():
    model = original()
    with learning(model, "attention", 0, 0):
        found = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert found == {name for name, _ in model.named_parameters() if ".self_attn." in name}
    assert len(projection_names(model)) == 4 * model.config.num_hidden_layers


def test_many_layers_have_adapters_on_the_seam_alone():
    """Of many names peft makes few endings, which must not fit anything else."""
    model = every_model("QKV", num_hidden_layers=7)
    wanted = {f"{name}.lora_A.{weights.ADAPTER}.weight" for name in projection_names(model)}
    add_adapters(model, RANK)
    assert {name for name, _ in model.named_parameters() if "lora_A" in name} == wanted
    assert len(wanted) == 28


def test_adapters_are_drawn_by_their_seed_and_leave_the_random_state_alone():
    drawn = []
    for seed in (0, 0, 1):
        model, state = student(), torch.random.get_rng_state()
        add_adapters(model, RANK, seed)
        assert torch.equal(state, torch.random.get_rng_state())
        drawn.append(torch.cat([p.flatten() for n, p in model.named_parameters() if "lora_A" in n]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_without_peft_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(weights, "package_version", lambda name: None)
    with pytest.raises(ValueError, match="pip install"):
        add_adapters(student(), RANK)


def test_where_nothing_would_learn_it_says_so():
    class Recurrence(torch.nn.Linear):
        config = SimpleNamespace(model_type="recurrence")

    with pytest.raises(ValueError, match="--train all"), learning(Recurrence(2, 3), "attention", 0, 0):
        pass
    with pytest.raises(ValueError, match="leave --lora out"), learning(Recurrence(2, 3), "attention", RANK, 0):
        pass
