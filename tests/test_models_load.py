"""Loading a model's folder: bit for bit what was saved, or one line that says what is wrong."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_study import tiny_model
from twofold.models.load import load_model

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    tiny_model("K=V GQA-2", seed=3).save_pretrained(folder)
    return folder


@pytest.fixture
def place(saved, tmp_path):
    """A copy of the saved model, to damage."""
    return shutil.copytree(saved, tmp_path / "run" / "model")


def refused(place):
    """The one-line message."""
    with pytest.raises(ValueError, match=str(place)) as raised:
        load_model(place)
    assert "\n" not in str(raised.value)
    return str(raised.value).removeprefix(str(place))


def change_weights(place, change):
    tensors = load_file(place / "model.safetensors")
    change(tensors)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})


def change_config(place, **values):
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize("where", ["run", "run/model"])
def test_the_folder_or_the_one_above_it(place, tmp_path, where):
    loaded, made = load_model(tmp_path / where), tiny_model("K=V GQA-2", seed=3)
    assert not any(module.training for module in loaded.modules())
    assert loaded.config.variant == "K=V GQA-2"
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    values = dict(loaded.named_parameters())
    assert all(torch.equal(value, values.pop(name)) for name, value in made.named_parameters())
    assert not values


def test_no_folder_and_no_model(tmp_path):
    told = ": give a folder that `train` or `study run` wrote"
    assert refused(tmp_path / "nowhere") == " is not a folder" + told
    interrupted = "; one that was interrupted must be finished first, by the same command"
    assert refused(tmp_path) == " holds no model (no config.json)" + told + interrupted


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"model_type"'])
def test_a_damaged_configuration(place, text):
    (place / "config.json").write_text(text)
    assert refused(place) == "/config.json is not a model's configuration, or damaged"


def test_another_kind_of_model(place):
    change_config(place, model_type="llama")
    assert refused(place) == " holds a 'llama' model and not a Twofold one"


def test_no_weights(place):
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    assert refused(place) == " holds no weights (no .safetensors file): train the model again"


@pytest.mark.parametrize("kept", [0, 3, 1000, -1])
def test_truncated_weights(place, kept):
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert refused(place).startswith(": the weights are damaged (")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda tensors: tensors.pop(NAME), "missing"),
        (lambda tensors: tensors.update(extra=torch.zeros(3)), "unexpected"),
        (lambda tensors: tensors.update({NAME: tensors[NAME][:5].clone()}), "mismatched"),
    ],
)
def test_weights_that_are_not_this_models(place, change, fault):
    change_weights(place, change)
    message = refused(place)
    assert message.startswith(f": weights and config.json do not belong together, {fault} in the weights: ")
    assert ("extra" if fault == "unexpected" else NAME) in message


def test_a_configuration_of_another_size_or_variant(place):
    change_config(place, num_hidden_layers=3)
    assert "missing in the weights: model.layers.2." in refused(place)
    change_config(place, num_hidden_layers=2, variant="K=V MQA")
    assert "mismatched in the weights: " in refused(place)
    change_config(place, variant="QKV GQA-2")
    assert "missing in the weights: " in refused(place)


@pytest.mark.parametrize(("values", "message"), [({"variant": "K=W"}, "unknown variant"), ({"head_dim": 7}, "even")])
def test_a_configuration_that_makes_no_model(place, values, message):
    change_config(place, **values)
    with pytest.raises(ValueError, match=message):
        load_model(place)
