"""A model made without memory, on the meta device, becomes the same model with one parameter per shared role."""

import pytest
import torch

from tiny_study import tiny_model
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.initialise import initialise

MATRICES = {"QKV": 3, "K=V": 2, "Q=K": 2, "Q=K=V": 1, "K=V GQA-2": 2, "K=V MQA": 2, "MQA": 3}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("variant", MATRICES)
def test_meta_device_keeps_one_parameter_per_shared_role(variant, tied):
    usual = tiny_model(variant, seed=7, block="paper", tied=tied)
    with torch.device("meta"):
        model = TwofoldForCausalLM(usual.config)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    model.to_empty(device="cpu")
    model.tie_weights()
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, torch.nan)  # what is not drawn would show
    initialise(model, seed=7)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in usual.named_parameters()]
    for name, parameter in usual.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    projections = model.model.layers[0].attention.projections
    assert sum(name.endswith("weight") for name, _ in projections.named_parameters()) == MATRICES[variant] + 1
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
