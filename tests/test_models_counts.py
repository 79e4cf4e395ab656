"""Counted costs against real models: parameters on the meta device, multiply-accumulates as they are executed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from small_models import STYLES, VARIANTS, random_ids
from twofold.analysis.costs import cache_bytes, macs, measured_parameters, parameters
from twofold.models.activations import ACTIVATIONS
from twofold.models.architecture import Architecture
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.presets import architecture


@st.composite
def architectures(draw):
    block, rotary = draw(st.sampled_from(STYLES))
    heads = draw(st.sampled_from([2, 4, 6]))
    return Architecture(
        layers=draw(st.integers(1, 3)),
        width=draw(st.integers(1, 19)),
        heads=heads,
        head_dim=2 * draw(st.integers(1, 5)),
        mlp=draw(st.integers(1, 23)),
        vocab=draw(st.integers(2, 29)),
        positions=draw(st.integers(17, 31)),
        block=block,
        rotary=rotary,
        activation=draw(st.sampled_from(list(ACTIVATIONS[block]))),
        position_offset=draw(st.sampled_from((0, 2, 5))) if rotary == "none" else 0,
        tied=draw(st.booleans()),
        variant=draw(st.sampled_from(VARIANTS)),
    )


@given(architectures(), st.booleans())
def test_parameters_by_part(arch, fused):
    with torch.device("meta"):
        model = TwofoldForCausalLM(TwofoldConfig.from_architecture(arch, fused_projections=fused))
    assert measured_parameters(model) == parameters(arch)
    assert sum(p.numel() for p in model.parameters()) == parameters(arch)["total"]


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-4"])
@pytest.mark.parametrize("preset", ["tiny", "300M", "1.2B"])
def test_parameters_of_presets(preset, variant):
    arch = architecture(preset, variant=variant)
    with torch.device("meta"):
        model = TwofoldForCausalLM(TwofoldConfig.from_architecture(arch))
    assert measured_parameters(model) == parameters(arch)


@settings(max_examples=40)
@given(architectures(), st.integers(2, 17), st.integers(1, 3))
def test_multiply_accumulates_by_part(arch, tokens, batch):
    # The eager path computes all T² scores, which is what is counted.
    config = TwofoldConfig.from_architecture(arch, attn_implementation="eager")
    model = TwofoldForCausalLM(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(random_ids(batch, tokens) % arch.vocab)
    done = {module: sum(by.values()) // 2 for module, by in counter.get_flop_counts().items()}
    expected = {part: batch * count for part, count in macs(arch, tokens).items()}
    assert counter.get_total_flops() == 2 * expected["total"]
    for part, end in (("attention", ".attention"), ("mlp", ".mlp"), ("head", ".lm_head")):
        assert sum(count for module, count in done.items() if module.endswith(end)) == expected[part]


@settings(max_examples=40)
@given(architectures(), st.integers(1, 17), st.integers(1, 3), st.sampled_from(["float32", "bfloat16", "float64"]))
def test_cache_bytes(arch, tokens, batch, dtype):
    model = TwofoldForCausalLM(TwofoldConfig.from_architecture(arch)).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        cache = model(random_ids(batch, tokens) % arch.vocab).cache
    assert cache.bytes_used == cache_bytes(arch, tokens, dtype, batch)
