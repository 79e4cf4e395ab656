"""Notation: there and back, the paper's names, refusals with their reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.variants.choices import ROLES, PositionTerm, Recurrence, Sharing, Treatment
from twofold.variants.listing import FURTHER
from twofold.variants.notation import PUBLISHED, parse
from twofold.variants.variant import Variant

terms = st.sampled_from((PositionTerm.NONE, PositionTerm.PUBLISHED))
grouped = st.builds(Variant, st.sampled_from([Sharing.QKV, Sharing.KEY_VALUE]), st.integers(1, 99), terms)
ungrouped = st.builds(Variant, st.sampled_from(Sharing), st.none(), terms)
plain = st.one_of(grouped, ungrouped)
"""What the paper has a name for."""


@st.composite
def any_variants(draw):
    """Any combination of everything that has a meaning."""
    fields = {
        "sharing": draw(st.sampled_from(Sharing)),
        "kv_heads": draw(st.none() | st.integers(1, 99)),
        "position_term": draw(st.sampled_from(PositionTerm)),
        "treatment": draw(st.sampled_from(Treatment)),
        "latent": draw(st.booleans()),
        "recurrence": draw(st.sampled_from(Recurrence)),
        "diagonal": draw(st.booleans()),
        "unprojected": draw(st.sampled_from([(), ("query",), ("key",), ("query", "key"), ROLES])),
        "rank": draw(st.none() | st.integers(1, 99)),
        "nonlinear_query": draw(st.booleans()),
        "row_layers": draw(st.integers(1, 3)),
        "matrix_layers": draw(st.integers(1, 3)),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(fields)), max_size=4))  # few at once: most have a meaning then
    try:
        return Variant(**{name: fields[name] for name in chosen})
    except ValueError:
        return Variant(position_term=fields["position_term"])


variants = st.one_of(plain, any_variants())


@given(variants)
def test_printed_variants_parse_to_themselves(variant):
    assert parse(str(variant)) == variant
    assert parse(str(variant).lower()) == variant
    assert parse(f"  {variant} ") == variant


@given(plain)
def test_the_papers_names_parse_to_the_same_variant(variant):
    assert parse(variant.paper_name) == variant
    assert {parse(alias) for alias in variant.aliases} <= {variant}
    assert str(variant) not in variant.aliases


@given(variants, variants)
def test_names_and_slugs_tell_variants_apart(one, other):
    same = one == other
    assert (str(one) == str(other)) == same
    if one.paper_name or other.paper_name:
        assert (one.paper_name == other.paper_name) == same
    assert (one.slug == other.slug) == same
    assert " " not in one.slug


@pytest.mark.parametrize(
    ("alias", "canonical"),
    [
        ("Q=K-V", "Q=K"),
        ("Q-K=V", "K=V"),
        ("Q-GQA-4", "K=V GQA-4"),
        ("Q-MQA", "K=V MQA"),
        ("(Q=K-V)+", "Q=K +"),
        ("(QKV)+", "QKV +"),
        ("q=k+", "Q=K +"),
        ("QKV MHA", "QKV"),
        ("MHA", "QKV"),
        ("QKV GQA-4", "GQA-4"),
        ("GQA4", "GQA-4"),
        ("K=V GQA-1", "K=V MQA"),
        ("K=V derotated", "K=V"),
        ("K=V on-read", "K=V on_read"),
        ("diagonal", "Q=K=V diagonal"),
        ("no-wv no-wq", "no-WQ no-WV"),
        ("Q=K=V no-WK", "simplified"),
        ("K=V gqa-4 Decoupled", "K=V GQA-4 decoupled"),
        ("linear", "QKV linear"),
        ("QKV linear-elu", "QKV linear"),
        ("QKV MLA", "MLA"),
        ("cla2", "QKV CLA-2"),
        ("Q=K+temperature", "Q=K +temperature"),
    ],
)
def test_other_spellings(alias, canonical):
    assert str(parse(alias)) == canonical


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("K=W", "K=V"),
        ("MQQ", "MQA"),
        ("K=V GQA", "K=V GQA-8"),
        ("Q=K=", "Q=K"),
        ("K = V", "K=V"),
        ("decouple", "decoupled"),
        ("no-WQQ", "no-WQ"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_variant(typed, meant):
    with pytest.raises(ValueError, match=f"unknown variant '{typed}': did you mean '{meant}"):
        parse(typed)


@pytest.mark.parametrize(
    "text", ["", " ", "banana", "K=V K=V", "MQA GQA-2", "K=V Q-MQA", "K=V + +", "(K=V", "GQA-", "GQA--2", "K=V,MQA"]
)
def test_nonsense_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match="A variant is QKV, Q=K, K=V or Q=K=V"):
        parse(text)


@given(st.text("QKVMHAGkv=-+() 0124\n", max_size=16))
def test_any_text_is_a_variant_or_a_value_error(text):
    try:
        variant = parse(text)
    except ValueError:
        return
    assert parse(str(variant)) == variant


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Q=K GQA-4", "Q=K cannot be combined with GQA-4: .* every query head needs a key head of its own"),
        ("Q=K=V MQA", "Q=K=V cannot be combined with MQA"),
        ("GQA-0", "at least 1 key/value head, not 0"),
        ("QKV derotated", "derotated is a treatment of shared values, and QKV gives the value a projection"),
        ("Q=K derotated", "derotated is a treatment of shared values"),
        ("kept", "kept is a treatment of shared values, and QKV"),
        ("Q=K=V decoupled", "Q=K=V cannot be decoupled: .* Use K=V decoupled"),
        ("QKV diagonal", "QKV shares none: use Q=K=V diagonal"),
        ("K=V decoupled diagonal", "diagonal cannot be combined with decoupled"),
        ("Q=K no-WQ", "in Q=K the query has no matrix of its own"),
        ("MQA no-WK", "no-WK cannot be combined with MQA"),
        ("simplified rank-3", "rank-3: there is no projection left"),
        ("Q=K nonlinear-WQ", "nonlinear-WQ replaces the query's own matrix"),
        ("K=V MLA", "MLA cannot be combined with K=V: .* use K=V decoupled"),
        ("MLA kept", "MLA has a rotary key beside its latent.*use MLA on_read"),
        ("K=V on_read linear", "a linear recurrence has no rotary"),
        ("K=V linear CLA-2", "keeps a state and no rows"),
        ("QKV linear +", "the scores before a softmax"),
        ("Q=K CLA-2", "makes no key that its query could be"),
        ("QKV rank-0", "rank of at least 1, not 0"),
        ("QKV CLA-0", "at least 1 layer has its own rows, not 0"),
    ],
)
def test_pairs_without_a_meaning_are_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_kv_heads_must_divide_query_heads():
    assert [parse(v).kv_heads_for(12) for v in ("QKV", "GQA-4", "MQA", "Q=K=V")] == [12, 4, 1, 12]
    with pytest.raises(ValueError, match=r"12 query heads .* among 5 key/value heads; .* 1, 2, 3, 4, 6, 12"):
        parse("GQA-5").kv_heads_for(12)
    with pytest.raises(ValueError, match="among 24 key/value heads"):
        parse("GQA-24").kv_heads_for(12)


@pytest.mark.parametrize(
    ("sharing", "matrices"), [("QKV", "query key value"), ("Q=K", "key value"), ("K=V", "query key"), ("Q=K=V", "key")]
)
def test_one_matrix_for_the_roles_that_share(sharing, matrices):
    kind = Sharing(sharing)
    assert kind.matrices == tuple(matrices.split())
    assert set(kind.sources) == set(ROLES)
    assert set(kind.sources.values()) == set(kind.matrices)
    assert kind.query_is_key == (kind.sources["query"] == kind.sources["key"])
    assert kind.value_is_key == (kind.sources["value"] == kind.sources["key"])


def test_cache_ratios_are_the_papers_cuts():
    cuts = {"QKV": 0, "K=V": 50, "Q=K": 0, "Q=K=V": 50, "GQA-4": 75, "MQA": 93.75, "K=V GQA-4": 87.5, "K=V MQA": 96.875}
    assert {name: 100 - 100 * parse(name).cache_ratio(16) for name in cuts} == cuts


def test_published_variants_are_distinct_and_hold_the_papers_eight():
    assert len(set(PUBLISHED)) == len(PUBLISHED) == 16
    eight = ("QKV", "K=V", "Q=K", "Q=K=V", "GQA-4", "MQA", "K=V GQA-4", "K=V MQA")
    assert {parse(name) for name in eight} <= set(PUBLISHED)


def test_neighbours_are_none_of_the_published():
    further = [variant for group in FURTHER.values() for variant in group]
    assert len({*further, *PUBLISHED}) == len(further) + len(PUBLISHED)
    assert not any(variant.paper_name for variant in further)
