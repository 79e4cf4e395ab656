"""Matched models really cost the same, what cannot match is told the nearest, and a reference is left alone."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.study.match import CACHE_BY, COSTS, TOLERANCE, Targets, cost, matched
from twofold.variants.notation import parse

CONTEXT = 37
SHARINGS = ("QKV", "Q=K", "K=V", "Q=K=V")


@st.composite
def notations(draw, heads):
    sharing = draw(st.sampled_from(SHARINGS))
    divisors = [g for g in range(1, heads + 1) if heads % g == 0]
    grouped = sharing in ("QKV", "K=V") and draw(st.booleans())
    return f"{sharing} GQA-{draw(st.sampled_from(divisors))}" if grouped else sharing


@st.composite
def architectures(draw):
    heads = draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12)))
    return Architecture(
        layers=draw(st.integers(1, 5)),
        width=draw(st.integers(3, 130)),
        heads=heads,
        mlp=draw(st.integers(1, 600)),
        vocab=257,
        positions=53,
        block=draw(st.sampled_from(("paper", "modern"))),
        head_dim=2 * draw(st.integers(1, 40)),
        tied=draw(st.booleans()),
        variant=draw(notations(heads)),
    )


wanted_costs = st.lists(st.sampled_from(tuple(COSTS)), min_size=1, unique=True)


def targets(wanted, reference):
    return Targets({name: cost(name, reference, CONTEXT) for name in wanted}, CONTEXT)


def relative(name, arch, target):
    return abs(cost(name, arch, CONTEXT) / target - 1)


@given(st.data(), architectures(), wanted_costs, st.sampled_from(CACHE_BY))
@settings(max_examples=300)
def test_what_is_matched_is_within_the_tolerance_and_nothing_else_changes(data, study, wanted, by):
    reference = replace(study, variant=parse(data.draw(notations(study.heads))))
    goal = targets(wanted, reference)
    try:
        found = matched(study, goal, by)
    except ValueError as error:
        told = str(error).replace(",", "")
        assert "the nearest" in told
        assert any(str(number) in told for number in goal.wanted.values())
        return
    for name, target in goal.wanted.items():
        assert relative(name, found, target) <= TOLERANCE
    changeable = {"heads": {"heads", "variant"}, "head_dim": {"head_dim"}}[by] if "cache" in wanted else set()
    changeable |= {"mlp"} if set(wanted) - {"cache"} else set()
    kept = {name: getattr(study, name) for name in changeable}
    assert replace(found, **kept) == study
    assert found.variant.sharing == study.variant.sharing
    if by == "heads" and not study.variant.sharing.query_is_key:
        assert found.heads - study.heads in range(found.kv_heads)  # no more query heads than the groups need


@given(architectures(), wanted_costs, st.sampled_from(CACHE_BY))
def test_a_model_matched_to_itself_is_unchanged(arch, wanted, by):
    assert matched(arch, targets(wanted, arch), by) == arch


@given(architectures(), st.integers(1, 10**6), st.sampled_from(CACHE_BY))
@settings(max_examples=100)
def test_no_other_cache_is_nearer(arch, target, by):
    """Against every size that could be had, one by one."""
    unit = cost("cache", replace(arch, variant=parse("K=V MQA"), heads=1, head_dim=2), CONTEXT)
    most = target // unit + 4
    assume(most < 3000)

    def with_heads(count):
        variant, heads = arch.variant.with_kv_heads(count, arch.heads)
        return replace(arch, variant=variant, heads=heads)

    sizes = (
        map(with_heads, range(1, most)) if by == "heads" else (replace(arch, head_dim=2 * n) for n in range(1, most))
    )
    if by == "head_dim" and arch.learned_positions:
        sizes = (replace(arch, head_dim=n) for n in range(1, 2 * most))
    best = min(relative("cache", one, target) for one in sizes)
    goal = Targets({"cache": target}, CONTEXT)
    if best <= TOLERANCE:
        assert relative("cache", matched(arch, goal, by), target) == best
    else:
        with pytest.raises(ValueError, match="the nearest") as raised:
            matched(arch, goal, by)
        nearest = int(re.search(r"has ([\d,]+) \(", str(raised.value))[1].replace(",", ""))
        assert abs(nearest / target - 1) == best


@given(architectures(), st.sampled_from((["parameters"], ["compute"], ["parameters", "compute"])), st.data())
@settings(max_examples=100)
def test_no_other_mlp_is_nearer(arch, names, data):
    """The largest difference falls and then rises with the width: its neighbours settle it."""
    factor = st.floats(0.5, 2)
    goal = Targets({name: round(cost(name, arch, CONTEXT) * data.draw(factor)) for name in names}, CONTEXT)
    try:
        found = matched(arch, goal)
    except ValueError as error:
        found = replace(arch, mlp=int(re.search(r"nearest, mlp (\d+),", str(error))[1]))
        assert goal.off(found, names) > TOLERANCE
    others = [width for step in (1, 7, 101) for width in (found.mlp - step, found.mlp + step) if width > 0]
    assert all(goal.off(found, names) <= goal.off(replace(arch, mlp=width), names) for width in others)


def tiny(variant, **fields):
    return architecture("tiny", variant=variant, **fields)


def to(variant, *wanted, **fields):
    return targets(wanted, tiny(variant, **fields))


@pytest.mark.parametrize(
    ("notation", "reference", "found"),
    [
        ("K=V GQA-2", "GQA-2", ("K=V GQA-4", 4)),
        ("K=V", "QKV", ("K=V", 8)),  # as many key/value heads as query heads before, and after
        ("K=V MQA", "QKV", ("K=V GQA-8", 8)),
        ("QKV", "K=V GQA-2", ("MQA", 4)),
        ("Q=K", "GQA-2", ("Q=K", 2)),
        ("Q=K=V", "QKV", ("Q=K=V", 8)),
        ("K=V GQA-2", "K=V GQA-2", ("K=V GQA-2", 4)),
    ],
)
def test_cache_by_heads(notation, reference, found):
    arch = matched(tiny(notation), to(reference, "cache"))
    assert ((str(arch.variant), arch.heads), arch.head_dim) == (found, 32)


def test_query_heads_are_added_only_where_the_groups_need_them():
    three = matched(tiny("K=V MQA"), Targets({"cache": 4 * 3 * 32 * 4}, CONTEXT))
    assert (str(three.variant), three.heads, three.head_dim) == ("K=V GQA-3", 6, 32)


def test_cache_and_parameters_by_hand():
    arch = matched(tiny("K=V GQA-2"), to("GQA-2", "cache", "parameters"), "head_dim")
    # Heads twice as wide: queries and output 128·128 more each, the one key matrix as large as key and value were,
    # and each MLP column has 3·128 weights: 85 columns for 2·128·128.
    assert (str(arch.variant), arch.head_dim, arch.mlp) == ("K=V GQA-2", 64, 344 - 85)


def test_given_sizes_stay():
    wide = tiny("K=V GQA-2", head_dim=64)
    assert matched(wide, to("GQA-2", "cache"), "head_dim", {"head_dim"}) == wide
    with pytest.raises(ValueError, match=r"by head_dim \(head_dim is given and stays\): the nearest, head_dim 48, has"):
        matched(tiny("K=V GQA-2", head_dim=48), to("GQA-2", "cache"), "head_dim", {"head_dim"})
    with pytest.raises(ValueError, match=r"by heads \(heads is given .*, 4 key/value heads and 4 query heads of 32 "):
        matched(tiny("K=V MQA"), to("GQA-2", "cache", heads=8, head_dim=64), "heads", {"heads"})
    with pytest.raises(
        ValueError, match=r"by mlp \(mlp is given and stays\): the nearest, mlp 300, has 6.* or leave mlp out"
    ):
        matched(tiny("GQA-2", mlp=300), to("GQA-2", "parameters"), given={"mlp"})


def test_a_refusal_names_the_numbers_and_the_nearest():
    with pytest.raises(ValueError, match="cannot be matched") as raised:
        matched(tiny("K=V GQA-2"), Targets({"cache": 1000}, CONTEXT))
    assert str(raised.value) == (
        "K=V GQA-2 cannot be matched to 1,000 cached bytes per token within 0.5 % by heads: the nearest, 2 key/value "
        "heads and 4 query heads of 32 dims, has 1,024 (2.40 % more). Match to that, or by head_dim"
    )
    with pytest.raises(
        ValueError, match=r"nearest, mlp 247, has 708,352 .* and 28.* more\)\. Match one of the two alone"
    ):
        matched(tiny("K=V MQA", head_dim=64), targets(["parameters", "compute"], tiny("MQA", positions=256)))
    with pytest.raises(ValueError, match=r"by mlp: the nearest, mlp 1, has 232,\d{3} \(23,\d+\.\d\d % more\)"):
        matched(tiny("GQA-2"), Targets({"parameters": 1000}, CONTEXT))


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="unknown cost 'speed': choose from cache, parameters, compute"):
        Targets({"speed": 1}, CONTEXT)
    with pytest.raises(ValueError, match="parameters must be at least 1, not 0"):
        Targets({"parameters": 0}, CONTEXT)
    with pytest.raises(ValueError, match="cache_by 'width' is unknown: choose heads or head_dim"):
        matched(tiny("QKV"), to("QKV", "cache"), "width")


@pytest.mark.parametrize(
    ("notation", "by", "found"),
    [
        ("K=V CLA-2", "heads", {"kv_heads": 8}),
        ("K=V CLA-2", "head_dim", {"head_dim": 64}),
        ("K=V GQA-2 kept", "head_dim", {"head_dim": 48}),  # 1.25 × 48 is nearest to 64 in steps of 8 dims
        ("simplified", "heads", {"heads": 4, "head_dim": 32}),
    ],
)
def test_neighbours_match_a_cache_as_far_as_they_can(notation, by, found):
    target = 4 * 4 * 4 * 32 if notation != "K=V GQA-2 kept" else 4 * 4 * 2 * 60
    arch = matched(architecture("tiny", variant=notation), Targets({"cache": target}, 256), by)
    assert {name: getattr(arch, name) for name in found} == found


@pytest.mark.parametrize(
    ("notation", "by", "reason"),
    [
        ("MLA", "heads", "MLA cannot be matched to 2,048 cached bytes .* the nearest"),
        ("QKV linear", "heads", "QKV linear keeps a state of constant size"),
        ("QKV linear", "head_dim", "QKV linear keeps a state of constant size"),
    ],
)
def test_a_cache_that_nothing_changes_is_refused(notation, by, reason):
    with pytest.raises(ValueError, match=reason):
        matched(architecture("tiny", variant=notation), Targets({"cache": 2048}, 256), by)


def test_an_entrys_own_window_has_no_cache_per_token_to_match():
    arch = architecture("tiny", variant="QKV", window=32, layer_pattern="SSSL")
    targets = Targets({"cache": 2048}, 256)
    with pytest.raises(ValueError, match="pattern SSSL keeps a smaller share of a longer text"):
        matched(arch, targets, given=("window", "layer_pattern"))
    assert matched(arch, targets).kv_heads == 2, "the same window for all is no obstacle"
