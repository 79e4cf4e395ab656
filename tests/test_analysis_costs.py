"""Costs against the published tables (arXiv 2606.04032, derived from its sizes) and against counts by hand."""

import json

import pytest

from twofold.analysis import costs
from twofold.models.architecture import Architecture
from twofold.models.presets import architecture

MIB = 2**20

# variant: parameters and attention parameters in millions, KiB per token in bfloat16
SMALL = {
    "QKV": ("305.53", "83.97", 80),
    "K=V": ("284.54", "62.98", 40),
    "Q=K": ("284.54", "62.98", 80),
    "Q=K=V": ("263.55", "41.98", 40),
    "GQA-4": ("274.05", "52.48", 20),
    "MQA": ("266.17", "44.61", 5),
    "K=V GQA-4": ("268.80", "47.23", 10),
    "K=V MQA": ("264.86", "43.30", 2.5),
}
# variant: parameters in millions as printed, MiB at 32,768 tokens in bfloat16
LARGE = {
    "QKV": ("1215", 5632),
    "K=V": ("1123", 2816),
    "GQA-8": ("1077", 1408),
    "K=V GQA-8": ("1053.5", 704),
    "MQA": ("1036", 176),
    "K=V MQA": ("1033", 88),
}
# tokens: totals in 10⁹ with three, two and one projections
MACS = {
    128: ("39.48", "36.79", "34.11"),
    512: ("165.96", "155.22", "144.49"),
    1024: ("353.40", "331.92", "310.45"),
    2048: ("792.69", "749.74", "706.79"),
}


@pytest.mark.parametrize("variant", SMALL)
def test_300m_parameters_and_cache_are_the_published_ones(variant):
    total, attention, kib = SMALL[variant]
    model = architecture("300M", variant=variant)
    counts = costs.parameters(model)
    assert f"{counts['total'] / 1e6:.2f}" == total
    assert f"{counts['attention'] / 1e6:.2f}" == attention
    assert costs.cache_bytes_per_token(model, "bfloat16") == kib * 1024


@pytest.mark.parametrize("variant", LARGE)
def test_1200m_parameters_and_cache_are_the_published_ones(variant):
    total, mib = LARGE[variant]
    model = architecture("1.2B", variant=variant)
    decimals = len(total.partition(".")[2])
    assert f"{costs.parameters(model)['total'] / 1e6:.{decimals}f}" == total
    assert costs.cache_bytes(model, 32_768, "bfloat16") == mib * MIB


@pytest.mark.parametrize("tokens", MACS)
def test_300m_multiply_accumulates_are_the_published_ones(tokens):
    for variant, printed in zip(("QKV", "K=V", "Q=K=V"), MACS[tokens], strict=True):
        assert f"{costs.macs(architecture('300M', variant=variant), tokens)['total'] / 1e9:.2f}" == printed


@pytest.mark.parametrize(
    ("tokens", "attention", "mlp", "head"), [(128, "11.41", "21.47", "6.59"), (2048, "343.60", "343.60", "105.50")]
)
def test_300m_multiply_accumulates_split_as_published(tokens, attention, mlp, head):
    counts = costs.macs(architecture("300M"), tokens)
    assert [f"{counts[part] / 1e9:.2f}" for part in ("attention", "mlp", "head")] == [attention, mlp, head]


def test_paper_block_by_hand():
    # V=13, M=5, F=7, P=11, 2 layers, 3 heads of 2 dims (3·2 ≠ 5), MQA with K=V: a query matrix and one key matrix.
    model = Architecture(2, 5, 3, 7, 13, 11, block="paper", head_dim=2, variant="K=V MQA")
    assert costs.parameters(model) == {
        "embedding": 13 * 5,
        "positions": 11 * 5,
        "attention": 2 * ((5 * 6 + 6) + (5 * 2 + 2) + (6 * 5 + 5)),
        "mlp": 2 * ((5 * 7 + 7) + (7 * 5 + 5)),
        "norm": 5 * 2 * 5,
        "head": 0,
        "total": 65 + 55 + 166 + 164 + 50,
    }
    assert costs.macs(model, 17) == {
        "attention": 2 * 17 * (5 * 6 + 5 * 2 + 6 * 5 + 2 * 17 * 6),
        "mlp": 2 * 17 * 2 * 5 * 7,
        "head": 17 * 5 * 13,
        "total": 34 * 274 + 34 * 70 + 1105,
    }


def test_modern_block_by_hand():
    # No biases, RMSNorm, three MLP matrices, rotary instead of a table, and a head of its own.
    model = Architecture(3, 10, 5, 7, 13, 11, block="modern", tied=False, variant="QKV")
    assert costs.parameters(model) == {
        "embedding": 130,
        "positions": 0,
        "attention": 3 * 4 * 10 * 10,
        "mlp": 3 * 3 * 10 * 7,
        "norm": 7 * 10,
        "head": 130,
        "total": 130 + 1200 + 630 + 70 + 130,
    }
    assert costs.macs(model, 1) == {"attention": 3 * 420, "mlp": 3 * 210, "head": 130, "total": 1260 + 630 + 130}


def test_a_shared_matrix_saves_exactly_its_parameters_and_products():
    models = {v: architecture("tiny", variant=v) for v in ("QKV", "Q=K", "K=V", "Q=K=V")}
    count = {v: costs.parameters(m)["total"] for v, m in models.items()}
    work = {v: costs.macs(m, 31)["total"] for v, m in models.items()}
    matrix = 4 * 128 * 128
    assert count["QKV"] - count["Q=K"] == count["QKV"] - count["K=V"] == count["K=V"] - count["Q=K=V"] == matrix
    assert work["QKV"] - work["Q=K"] == work["QKV"] - work["K=V"] == work["K=V"] - work["Q=K=V"] == 31 * matrix


def test_sequences_that_fit_at_the_edges():
    model = architecture("tiny", variant="K=V")
    weights, sequence = costs.weight_bytes(model, "float32"), costs.cache_bytes(model, 101, "float32")
    assert sequence == 4 * 4 * 32 * 101 * 4  # layers, heads, dims, tokens, bytes

    def fit(memory):
        return costs.sequences_that_fit(memory, model, 101, "float32")

    assert [fit(weights + 7 * sequence + extra) for extra in (-1, 0, sequence - 1, sequence)] == [6, 7, 7, 8]
    assert fit(weights - 1) == fit(1) == 0


def test_plan_holds_the_same_numbers_and_is_json():
    model = architecture("300M", variant="K=V GQA-4")
    plan = costs.plan(model, context=32_768, tokens=2_048, batch=32, memory=24 * 2**30)
    shown = json.loads(json.dumps(plan.as_dict()))
    assert shown["variant"] == "K=V GQA-4"
    assert shown["parameters"] == costs.parameters(model)["total"] == sum(shown["parameters_by_part"].values())
    assert shown["attention_parameters"] == shown["parameters_by_part"]["attention"]
    assert shown["macs"] == costs.macs(model, 2_048)
    assert shown["cache_bytes"] == 320 * MIB
    assert shown["cache_bytes_batch"] == 32 * 320 * MIB
    assert shown["sequences_that_fit"] == (24 * 2**30 - shown["weight_bytes"]) // (320 * MIB) == 75


def test_plan_defaults_to_the_models_positions():
    plan = costs.plan(architecture("tiny", positions=97))
    assert (plan.context, plan.tokens, plan.sequences_that_fit, plan.warnings) == (97, 97, None, ())


def test_plan_warns_where_a_context_exceeds_the_positions():
    learned = costs.plan(architecture("300M"), context=2_049, tokens=2_048).warnings
    assert len(learned) == 1
    assert "context 2,049 exceeds the 2,048 positions" in learned[0]
    assert "learned" in learned[0]
    rotary = costs.plan(architecture("tiny"), context=2_048, tokens=2_049).warnings
    assert len(rotary) == 1
    assert "tokens 2,049" in rotary[0]
    assert "rotary" in rotary[0]


def test_plan_warns_where_memory_is_too_small():
    model = architecture("tiny")
    weights, sequence = costs.weight_bytes(model, "bfloat16"), costs.cache_bytes(model, 2_048, "bfloat16")
    assert "weights alone" in costs.plan(model, memory=weights - 1).warnings[0]
    assert "3 sequences do" in costs.plan(model, memory=weights + 3 * sequence, batch=4).warnings[0]
    assert not costs.plan(model, memory=weights + 4 * sequence, batch=4).warnings


@pytest.mark.parametrize("name", ["context", "tokens", "batch", "memory"])
def test_sizes_below_one_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        costs.plan(architecture("tiny"), **{name: 0})


def test_unknown_dtype_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"'fp7': choose one of .*bfloat16"):
        costs.plan(architecture("tiny"), dtype="fp7")
