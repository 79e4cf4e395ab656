"""Decoders whose layers differ: what one layer is, what is refused, and rows of several sizes on disk."""

import pytest
import torch

from every_variant import every_model
from small_models import random_ids
from twofold.analysis import costs
from twofold.cache.saved import load, save
from twofold.models.architecture import Architecture
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fingerprint import fingerprint

SIZES = {"layers": 3, "width": 30, "heads": 6, "head_dim": 10, "mlp": 17, "vocab": 29, "positions": 31}
NAMED = "GQA-2, layer_variants ['GQA-2', 'GQA-2 MLA on_read'], latent_norm False, layer_latents [0, 16]"
OTHER = "GQA-3 MLA on_read, layer_variants None, latent_norm False, layer_latents [16, 24], window 3, SL"
MIXED = {"layer_variants": ("GQA-2", "GQA-2 MLA on_read", "GQA-2"), "layer_latents": (0, 17, 0)}


def test_one_layer_is_a_model_of_which_all_layers_are_like_it():
    mixed = Architecture(**SIZES, **MIXED)
    assert mixed.described == "2 × GQA-2, 1 × GQA-2 MLA on_read"
    assert str(mixed.variant) == "GQA-2"
    assert mixed.at(0) is mixed.at(2)
    assert mixed.at(1) == Architecture(**SIZES, variant="GQA-2 MLA on_read", latent_dims=17)
    assert mixed.cache_bytes(7, "float32") == 4 * 7 * (40 + 17 + 40)
    plain = Architecture(**SIZES)
    assert not plain.is_mixed
    assert plain.at(2) is plain


def test_layers_without_a_rotary_part_are_turned_all_over():
    mixed = Architecture(**SIZES, layer_variants=("MQA", "MLA", "K=V kept"), rotary_dims=4)
    assert [mixed.at(n).rotated_dims for n in range(3)] == [10, 4, 4]
    pairs = Architecture(**SIZES, layer_variants=("MQA", "MLA", "MLA"), rotary_pairs=(4, 0))
    assert [pairs.at(n).rotary_exponents for n in range(3)] == [(), (0.8, 0.0), (0.8, 0.0)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layer_variants": ("QKV", "MQA")}, "layer_variants has 2 entries for 3 layers"),
        ({"layer_variants": ("MLA",) * 3, "layer_latents": (5, 7)}, "layer_latents has 2 entries for 3 layers"),
        ({"layer_variants": ("QKV CLA-2", "QKV", "QKV")}, "shares among layers or keeps a state"),
        ({"layer_variants": ("QKV", "K=V linear", "QKV")}, "shares among layers or keeps a state"),
        ({**MIXED, "layer_latents": (0, 0, 0)}, "layer 1 is GQA-2 MLA on_read with a latent of 0 dims"),
        ({**MIXED, "layer_latents": (9, 17, 0)}, "layer 0 is GQA-2 with a latent of 9 dims"),
        ({"layer_variants": ("QKV", "GQA-4", "QKV")}, "6 query heads cannot be shared out evenly among 4"),
        ({"layer_variants": ("QKV", "MQA", "QKV"), "latent_dims": 8}, "latent_dims are for MLA, and no layer is"),
        ({"variant": "MLA", "rotary_pairs": (0, 5)}, "different numbers from 0 to 4, not \\[0, 5\\]"),
        ({"variant": "MLA", "rotary_pairs": (1, 1)}, "different numbers from 0 to 4"),
        ({"variant": "MLA", "rotary_pairs": (0, 1), "rotary_dims": 6}, "2 rotary_pairs are 4 rotary_dims, and 6"),
        ({"variant": "K=V kept", "rotary_pairs": (0, 1)}, "rotary_pairs are for a rotary key of its own"),
        ({"variant": "K=V", "latent_norm": False}, "latent_norm is for MLA and decoupled"),
    ],
)
def test_what_does_not_fit_is_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        Architecture(**SIZES, **fields)


def test_a_configuration_keeps_what_its_layers_are():
    config = TwofoldConfig.from_architecture(Architecture(**SIZES, **MIXED, latent_norm=False))
    again = TwofoldConfig.from_dict(config.to_dict())
    assert again.architecture == config.architecture
    assert again.layer_variants == ["GQA-2", "GQA-2 MLA on_read", "GQA-2"]


def test_parameters_are_those_of_a_real_model():
    config = TwofoldConfig.from_architecture(Architecture(**SIZES, **MIXED, latent_norm=False))
    with torch.device("meta"):
        model = TwofoldForCausalLM(config)
    assert costs.parameters(config.architecture) == costs.measured_parameters(model)


def test_rows_of_several_sizes_are_saved_and_continued(tmp_path):
    model = every_model(NAMED)
    ids = random_ids(2, 11)
    with torch.no_grad():
        full = model(ids).logits
        cache = model(ids[:, :7]).cache
        save(cache, tmp_path / "rows", fingerprint(model), ids[:, :7])
        again = load(tmp_path / "rows", fingerprint(model), prompt=ids)
        torch.testing.assert_close(model(ids[:, 7:], cache=again).logits, full[:, 7:], rtol=0, atol=1e-10)
    assert [layer.layout.head_width for layer in again.layers] == [16, 16]
    assert [layer.kv_heads for layer in again.layers] == [2, 1]


def test_a_cache_of_other_rows_is_refused():
    model = every_model(NAMED)
    other = every_model(OTHER)
    with pytest.raises(ValueError, match="2 layers with rows of 16, 24 numbers, and this one has 2 layers with rows"):
        model(random_ids(1, 3), cache=other.model.new_cache())
