"""What is measured against what: models of equal size, steps that train, and the work that a roof counts."""

import pytest
import torch

from bench_records import machine
from twofold.bench import decoders, prefill, train, work
from twofold.bench.sizes import Effort, fifteen_million, sized, variants
from twofold.models.architecture import Architecture

SIZES = {"layers": 2, "width": 24, "heads": 3, "mlp": 40, "vocab": 53, "positions": 61}


def small(block="modern", variant="QKV"):
    return Architecture(**SIZES, block=block, variant=variant)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_model_of_15_million_has_them():
    with torch.device("meta"):
        assert count(decoders.ours(fifteen_million())) == 15_002_496


@pytest.mark.parametrize("size", ["tiny", "15M"])
def test_alternatives_have_as_many_parameters(size):
    with torch.device("meta"):
        modern, paper = (sized(size, block=block, positions=64) for block in ("modern", "paper"))
        assert count(decoders.llama(modern)) == count(decoders.ours(modern))
        assert count(decoders.gpt2(paper)) == count(decoders.ours(paper))


def test_x_transformers_has_as_many_parameters_and_the_biases_of_its_gates():
    pytest.importorskip("x_transformers")
    arch = sized("tiny")
    assert count(decoders.x_transformers(arch)) == count(decoders.ours(arch)) + arch.layers * 2 * arch.mlp


@pytest.mark.parametrize("variant", ["QKV", "MQA"])
def test_llama_is_the_same_function(variant):
    """With our weights it gives our logits: the two do equal work."""
    ours, llama = decoders.ours(small(variant=variant)), decoders.llama(small(variant=variant))
    names = {"attention.projections.": "self_attn.", "attention_norm": "input_layernorm"}
    names["mlp_norm"] = "post_attention_layernorm"
    state = ours.state_dict()
    for mine, theirs in names.items():
        state = {name.replace(mine, theirs): values for name, values in state.items()}
    llama.load_state_dict(state)
    ids = decoders.random_ids(small(), 2, 17)
    with torch.no_grad():
        torch.testing.assert_close(llama(ids).logits, ours(ids).logits, rtol=1e-4, atol=1e-5)


def test_variants_fit_the_heads_and_are_eight():
    assert variants(16)[4:] == ("GQA-4", "MQA", "K=V GQA-4", "K=V MQA")
    assert "K=V GQA-2" in variants(6)
    for heads in (6, 16, 32):
        assert (
            len(
                {
                    str(Architecture(**SIZES | {"heads": heads, "width": 8 * heads}, variant=v).variant)
                    for v in variants(heads)
                }
            )
            == 8
        )
    assert set(variants(16, quick=True)) < set(variants(16))


@pytest.mark.parametrize("block", ["modern", "paper"])
def test_a_step_trains_every_model(block):
    arch = small(block)
    ids = decoders.random_ids(arch, 4, 24)
    for name, model in train._models(arch):
        before = torch.nn.utils.parameters_to_vector(model.parameters()).clone()
        assert train.step(model, ids)() > 0
        after = torch.nn.utils.parameters_to_vector(model.parameters())
        moved = (after != before).double().mean()
        assert moved > 0.5, name
        assert torch.isfinite(after).all()


@pytest.mark.parametrize("variant", ["QKV", "K=V MQA"])
@pytest.mark.parametrize("block", ["modern", "paper"])
def test_a_prefill_is_the_sum_of_its_steps(variant, block):
    """Token by token or at once, the operations below the diagonal are the same; only the last needs the head."""
    arch, tokens = small(block, variant), 37
    head = 2 * arch.width * arch.vocab
    steps = sum(work.decode_step(arch, context).operations - head for context in range(1, tokens + 1))
    assert work.prefill(arch, tokens).operations == steps + head
    one = work.training_step(arch, 1, tokens).operations
    assert one == 3 * (steps + tokens * head)
    assert work.training_step(arch, 5, tokens).operations == 5 * one


def test_a_step_reads_weights_and_rows():
    arch = small(variant="K=V MQA")
    read = [work.decode_step(arch, context).bytes for context in (10, 11)]
    assert read[1] - read[0] == arch.layers * arch.head_dim * 4
    assert read[0] - 10 * arch.layers * arch.head_dim * 4 == count(decoders.ours(arch)) * 4


@pytest.mark.parametrize(("module", "sizes"), [(train, 2), (prefill, 3)], ids=["train", "prefill"])
def test_quick_measures_every_contender(module, sizes, monkeypatch):
    monkeypatch.setattr(train, "QUICK_LOADS", (train.Load("tiny", "modern", 1, 8), train.Load("tiny", "paper", 1, 8)))
    monkeypatch.setattr(prefill, "TOKENS", 8)
    monkeypatch.setattr(prefill, "fifteen_million", lambda variant="QKV": small(variant=variant))
    told = []
    rows, left_out = module.measure(Effort(1, quick=True), machine(), lambda *place: told.append(place))
    assert len({row.name for row in rows}) == sizes
    assert all(row.ratio > 0 and row.roof_fraction > 0 and row.tokens_per_second > 0 for row in rows)
    assert {row.alternative for row in rows} >= {"transformers Llama"}
    assert any("x-transformers" in text for text in left_out) or module is prefill or len(rows) == 3
    assert told[-1][0] == told[-1][1] == len(told) - 1


def test_what_is_not_installed_is_left_out_in_a_line():
    (line,) = decoders.left_out("some tool", {"json": "json", "no_such_module": "no-such-package"})
    assert line.startswith("some tool is left out: no-such-package not installed")
    assert decoders.left_out("json", {"json": "json"}) == []
