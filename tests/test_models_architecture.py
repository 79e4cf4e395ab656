"""Architecture and presets: what is derived, and what is refused with which words."""

import pytest

from twofold.models.architecture import FIELDS, Architecture
from twofold.models.presets import PRESETS, architecture
from twofold.variants.notation import parse

SIZES = {"layers": 2, "width": 12, "heads": 3, "mlp": 7, "vocab": 11, "positions": 13}


def test_sizes_follow_from_each_other():
    model = Architecture(**SIZES)
    assert (model.head_dim, model.kv_heads, model.rotary, model.learned_positions) == (4, 3, "full", False)
    paper = Architecture(**SIZES, block="paper", variant="K=V MQA")
    assert (paper.rotary, paper.learned_positions, paper.biases, paper.kv_heads) == ("none", True, True, 1)
    assert paper.variant == parse("K=V MQA")
    assert paper.row_layout.numbers(paper.kv_heads) == 4


def test_head_dim_may_differ_from_width_over_heads():
    model = Architecture(**{**SIZES, "width": 13}, head_dim=6)
    assert (model.head_dim, model.layer_sizes().head_dim, model.rotated_dims) == (6, 6, 6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, not 0") for name in SIZES),
        ({"width": 13}, "width 13 is not a multiple of 3 heads: give head_dim"),
        ({"head_dim": -2}, "head_dim must be greater than 0, not -2"),
        ({"head_dim": 5}, "head_dim must be even, not 5"),
        ({"block": "papre"}, "block 'papre' is unknown: choose paper .*; modern"),
        ({"rotary": "half"}, "rotary 'half' is unknown: choose none .*; full"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"dropout": float("nan")}, "dropout must be at least 0 and below 1"),
        ({"variant": "QKV +"}, "the \\+ term is for non-causal models"),
        ({"variant": "GQA-2"}, "3 query heads cannot be shared out evenly among 2"),
        ({"variant": "K=W"}, "did you mean 'K=V'"),
        ({"variant": "K=V kept", "rotary": "full", "rotary_dims": 4}, "over all 4 dims saves nothing: give fewer"),
        ({"variant": "K=V kept"}, "rotary_dims must be even and at least 2, not 0"),
        ({"variant": "MLA", "rotary": "none"}, "it needs rotary partial, not none"),
        ({"rotary": "none", "rotary_dims": 2}, "rotary none rotates no dims, and rotary_dims is 2"),
        ({"rotary": "partial", "rotary_dims": 6}, "rotary_dims 6 are more than the 4 dims"),
        ({"rotary_dims": 3}, "rotary_dims must be even and at least 2, not 3"),
        ({"latent_dims": 8}, "latent_dims are for MLA, and the variant is QKV"),
        ({"variant": "no-WQ", "head_dim": 6}, "3 heads × 6 dims must be the width 12"),
        ({"variant": "QKV linear", "rotary": "full"}, "has no rotary"),
        ({"variant": "QKV linear", "softcap": 3.0}, "softcap cannot be combined with QKV linear, which has no softmax"),
        ({"variant": "K=V decoupled", "qk_norm": True}, "qk_norm cannot be combined with K=V decoupled"),
        ({"variant": "MLA", "qk_norm": True}, "with MLA: the rotary part of its keys is one for .* use on_read"),
        ({"window": 4, "layer_pattern": "L"}, "window 4 is used by no layer of the pattern 'L'"),
        ({"layer_pattern": "SL"}, "give window, in tokens"),
        ({"window": 4, "layer_pattern": "SX"}, "layer_pattern 'SX' may hold S"),
        ({"window": 4, "layer_pattern": "SL", "variant": "K=V CLA-2"}, "layer 1 reads the rows of layer 0"),
        ({"layers": 4, "variant": "QKV CLA-3 tied-2"}, "layer 3 makes rows with the projections of layer 2"),
        ({"layers": 2, "variant": "QKV CLA-3"}, "QKV CLA-3 shares among more layers than there are, 2"),
        ({"variant": "K=V rank-13"}, "a matrix from 12 to 12 dims has no rank of 13: give a lower one"),
        ({"scale_exponent": -1.0}, "scale_exponent must be between 0 and 2"),
        ({"block": "paper", "qkv_bias": True}, "block paper has biases everywhere: leave qkv_bias out"),
        ({"softcap": float("nan")}, "softcap must be a positive number"),
        ({"activation": "relu"}, "block modern has no activation 'relu': choose silu .*, or use block paper"),
        ({"block": "paper", "activation": "silu"}, "has no activation 'silu': choose gelu .*gelu_tanh .*relu .*modern"),
        ({"block": "paper", "activation": "gelu_new"}, r"'gelu_new': choose gelu .*OPT's\)$"),
        ({"block": "paper", "position_offset": -1}, "position_offset must be at least 0, not -1"),
        ({"position_offset": 2}, "position_offset 2 is for learned positions, and rotary is full"),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Architecture(**{**SIZES, **fields})


def test_the_usual_activation_follows_the_block():
    assert [Architecture(**SIZES, block=block).activation for block in ("paper", "modern")] == ["gelu", "silu"]
    assert Architecture(**SIZES, block="paper", activation="relu").activation == "relu"


def test_odd_head_dims_are_fine_without_rotary():
    assert Architecture(**SIZES, head_dim=5, rotary="none").head_dim == 5


def test_what_a_variant_needs_is_the_default():
    kept = Architecture(**{**SIZES, "width": 48}, variant="K=V kept")
    assert (kept.rotary, kept.rotated_dims) == ("partial", 4)
    for rotary in ("", "full", "partial"):  # all of the key that stands beside
        apart = Architecture(**{**SIZES, "width": 48}, variant="MLA", rotary=rotary)
        assert (apart.rotary, apart.rotated_dims, apart.latent_width) == ("partial", 8, 64)
    assert Architecture(**SIZES, variant="K=V linear").learned_positions
    assert Architecture(**SIZES, rotary_dims=2).rotary == "partial"


def test_layers_that_share_and_windows():
    model = Architecture(**{**SIZES, "layers": 5}, variant="K=V CLA-2 tied-4", window=3, layer_pattern="SSLL")
    assert model.row_owners == (0, 0, 2, 2, 4)
    assert model.windows == (3, 3, None, None, 3)
    assert model.cached_rows[2] == (3, None, 3)
    assert model.matrix_owners == (0, 0, 0, 0, 4)


def test_presets_have_the_papers_sizes():
    small, large = architecture("300M"), architecture("1.2B")
    assert (small.layers, small.width, small.heads, small.head_dim, small.mlp) == (20, 1024, 16, 64, 4096)
    assert (large.layers, large.width, large.heads, large.head_dim, large.mlp) == (22, 2048, 32, 64, 8192)
    for model in (small, large):
        assert (model.vocab, model.positions, model.dropout, model.tied) == (50_304, 2_048, 0.1, True)
        assert (model.block, model.rotary, model.norm_epsilon) == ("paper", "none", 1e-5)


def test_overrides_replace_and_none_does_not():
    model = architecture("300M", width=768, heads=12, mlp=None, variant="MQA")
    assert (model.head_dim, model.mlp, str(model.variant)) == (64, 4096, "MQA")
    assert architecture("300M", block="modern").rotary == "full"


def test_presets_name_only_fields_that_exist():
    assert all(set(sizes) <= set(FIELDS) for sizes in PRESETS.values())


def test_unknown_presets_and_fields_name_the_choices():
    with pytest.raises(ValueError, match=r"unknown preset '300B': choose one of tiny, 300M, 1\.2B"):
        architecture("300B")
    with pytest.raises(ValueError, match="unknown model field 'widht': did you mean 'width'"):
        architecture("tiny", widht=5)
