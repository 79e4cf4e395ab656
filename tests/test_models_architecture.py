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
    assert [paper.matrix_outputs(role) for role in ("query", "key", "value")] == [12, 4, 4]
    assert paper.row_layout.numbers(paper.kv_heads) == 4


def test_head_dim_may_differ_from_width_over_heads():
    model = Architecture(**{**SIZES, "width": 13}, head_dim=6)
    assert (model.head_dim, model.matrix_outputs("query")) == (6, 18)


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
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Architecture(**{**SIZES, **fields})


def test_odd_head_dims_are_fine_without_rotary():
    assert Architecture(**SIZES, head_dim=5, rotary="none").head_dim == 5


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
