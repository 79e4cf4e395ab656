"""The cost of an explained model: its step and its times are those that `plan` has."""

import pytest

from small_encoders import encoder_of
from small_models import small_model
from tiny_published import tiny_config
from twofold.analysis.decoding import decode_work
from twofold.analysis.devices import FIRST_CHOICE, find_devices
from twofold.analysis.published_decoding import published_decode_work, weights_of
from twofold.analysis.published_source import read, without_storage
from twofold.analysis.roofline import roof
from twofold.explain.cost import DTYPE, cost_of


@pytest.mark.parametrize("variant", ["QKV", "K=V MQA"])
def test_a_decoder_s_step_is_that_of_its_sizes(variant):
    model = small_model(variant)
    cost, note = cost_of(model)
    work = decode_work(model.config.architecture, cost.context, DTYPE)
    assert (note, cost.decode) == (None, work.as_dict())
    assert list(cost.devices) == list(FIRST_CHOICE)
    for device in find_devices(FIRST_CHOICE):
        told = cost.devices[device.name]
        assert told["seconds"] == roof(work, device, DTYPE).seconds
        assert told["tokens_per_second"] == 1 / told["seconds"]
        assert told["fits"] == "yes"


def test_a_published_model_s_step_is_that_of_its_configuration():
    config = tiny_config("mistral")
    model = without_storage(config)
    cost, _ = cost_of(model)
    work = published_decode_work(read(config), weights_of(model), cost.context, DTYPE)
    assert cost.decode == work.as_dict()
    assert set(cost.devices) == set(FIRST_CHOICE)


def test_an_encoder_decodes_nothing():
    cost, note = cost_of(encoder_of("tokens", "whole"))
    assert (cost.decode, cost.devices) == ({}, {})
    assert "no cache" in note
