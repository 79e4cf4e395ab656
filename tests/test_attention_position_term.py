"""The `+` on the scores: equal to the published construction, what it comes to, its controls, and symmetry."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from small_models import HEAD_DIM, HEADS, WIDTH, randomise, small_projections
from twofold.attention.position_term import (
    KeyBias,
    PublishedTerm,
    RelativeBias,
    Temperature,
    asymmetry,
    position_term,
)
from twofold.attention.rotary import rotation
from twofold.variants.choices import PositionTerm

KINDS = tuple(kind for kind in PositionTerm if kind is not PositionTerm.NONE)
PUBLISHED, TEMPERATURE, KEY_BIAS, RELATIVE = KINDS
B, T = 2, 11
AWKWARD_CHANNELS = (3, 5, 7, 10, 13, 50)


def positions(length=T, start=0):
    return torch.arange(start, start + length)[None]


def literal_sinusoid(length, channels):
    """P [n, n, m] number by number: the first 2⌈m/4⌉ channels are the row's, cut off after m."""
    half = 2 * math.ceil(channels / 4)
    made = torch.zeros(length, length, channels, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            for c in range(channels):
                position, k = (i, c) if c < half else (j, c - half)
                angle = position / 10_000 ** ((k - k % 2) / half)
                made[i, j, c] = math.cos(angle) if k % 2 else math.sin(angle)
    return made


def literal_scores(scores_BHTT, convolution, channels):
    """The scores over m channels, the sinusoid added, and a 1×1 convolution back to one channel."""
    length = scores_BHTT.shape[-1]
    over_channels = scores_BHTT.flatten(0, 1)[:, None].expand(-1, channels, -1, -1)
    made = convolution(over_channels + literal_sinusoid(length, channels).permute(2, 0, 1))
    return made.view_as(scores_BHTT)


def random_term(kind, channels=10, *, per_head=False):
    term = position_term(kind, HEADS, channels, per_head=per_head).double()
    randomise(term)
    return term


def scored(term, scores_BHTT, at=None):
    terms = term(positions(scores_BHTT.shape[-1]) if at is None else at)
    scaled = scores_BHTT if terms.scale_H is None else terms.scale_H[:, None, None] * scores_BHTT
    return scaled if terms.bias_BHTT is None else scaled + terms.bias_BHTT


def random_scores(length=T):
    return torch.randn(B, HEADS, length, length, dtype=torch.float64)


@pytest.mark.parametrize("channels", AWKWARD_CHANNELS)
@pytest.mark.parametrize("length", [1, T])
def test_the_published_term_equals_its_literal_construction(channels, length):
    term = random_term(PUBLISHED, channels)
    convolution = torch.nn.Conv2d(channels, 1, 1).double()
    with torch.no_grad():
        convolution.weight.copy_(term.weight.view(1, channels, 1, 1))
        convolution.bias.copy_(term.bias)
    plain, literal = (random_scores(length).requires_grad_() for _ in range(2))
    literal.data.copy_(plain.data)
    ours, theirs = scored(term, plain), literal_scores(literal, convolution, channels)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(plain.grad, literal.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(term.weight.grad.flatten(), convolution.weight.grad.flatten(), rtol=0, atol=1e-10)
    torch.testing.assert_close(term.bias.grad, convolution.bias.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [PUBLISHED, TEMPERATURE, KEY_BIAS])
def test_a_term_per_head_gives_each_head_its_own(kind):
    term = random_term(kind, per_head=True)
    scores = random_scores()
    together = scored(term, scores)
    for head in range(HEADS):
        alone = position_term(kind, HEADS).double()
        alone.load_state_dict({name: value[head : head + 1] for name, value in term.state_dict().items()})
        torch.testing.assert_close(together[:, head], scored(alone, scores)[:, head])
    assert not torch.allclose(scored(term, scores[:, :1].expand_as(scores))[:, 0], together[:, 1])


@given(st.sampled_from(AWKWARD_CHANNELS), st.integers(1, 13), st.integers(0, 1000))
def test_in_the_softmax_it_is_a_temperature_and_a_key_bias(channels, length, seed):
    term = PublishedTerm(channels).double()
    term.reset(torch.Generator().manual_seed(seed))
    temperature, key_bias = Temperature().double(), KeyBias(channels).double()
    with torch.no_grad():
        temperature.scale.copy_(term.weight.sum(1))
        key_bias.weight.copy_(term.weight[:, 2 * math.ceil(channels / 4) :])
    scores = random_scores(length)
    published = scored(term, scores).softmax(-1)
    torch.testing.assert_close(published, scored(key_bias, scored(temperature, scores)).softmax(-1))


def test_row_channels_and_bias_have_no_effect_on_what_is_read():
    term = random_term(PUBLISHED)
    scored(term, random_scores()).softmax(-1).square().sum().backward()
    key_gradient = term.weight.grad[0, term.row_channels :]
    # Of a row's channel only its part of Σw is left: one gradient for all of them.
    row_gradient = term.weight.grad[0, : term.row_channels]
    torch.testing.assert_close(row_gradient, row_gradient[:1].expand_as(row_gradient))
    assert key_gradient.std() > 1e-3
    assert term.bias.grad.abs() < 1e-12


def test_every_distance_has_t5s_bucket():
    at = positions(300)
    expected = T5Attention._relative_position_bucket(at[0][None, :] - at[0][:, None], True, 32, 128)
    assert torch.equal(RelativeBias(HEADS).buckets(at)[0], expected)


def test_only_the_relative_bias_does_not_ask_where_it_starts():
    scores = random_scores()
    for kind in KINDS:
        term = random_term(kind)
        near, far = (scored(term, scores, positions(start=start)).softmax(-1) for start in (0, 1_000))
        assert torch.allclose(near, far) == (kind in (RELATIVE, TEMPERATURE)), kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_attention_computes_it(kind, dtype):
    """The scale in the query, the bias in the mask; each sequence with positions of its own, and padding."""
    term = random_term(kind, per_head=True)
    query, key, value = torch.randn(3, B, HEADS, T, HEAD_DIM, dtype=torch.float64).unbind()
    at = torch.stack([positions()[0], positions(start=3)[0]])
    seen = torch.ones(B, 1, T, T, dtype=torch.bool)
    seen[1, ..., -4:] = False
    scores = scored(term, query @ key.mT / HEAD_DIM**0.5, at).masked_fill(~seen, -torch.inf)
    expected = scores.softmax(-1) @ value
    terms = term.to(dtype)(at)
    mask = {
        "bool": seen,
        "float": torch.zeros(B, 1, T, T, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min),
    }
    for form in mask.values():
        scaled, bias = terms.applied(query.to(dtype), form)
        read = F.scaled_dot_product_attention(scaled, key.to(dtype), value.to(dtype), attn_mask=bias)
        tolerance = 1e-12 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(read.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mask_and_with_gradients(kind):
    term = random_term(kind)
    query, key, value = (torch.randn(B, HEADS, T, HEAD_DIM, dtype=torch.float64, requires_grad=True) for _ in range(3))
    wanted = [query, key, value, *term.parameters()]
    plain = scored(term, query @ key.mT / HEAD_DIM**0.5).softmax(-1) @ value
    scaled, bias = term(positions()).applied(query, None)
    fused = F.scaled_dot_product_attention(scaled, key, value, attn_mask=bias)
    weights = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * weights).sum(), wanted)
    for ours, theirs in zip(torch.autograd.grad((fused * weights).sum(), wanted), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [PUBLISHED, KEY_BIAS, RELATIVE])
def test_a_position_that_sees_nothing_gives_no_nan(kind):
    query = torch.randn(1, HEADS, T, HEAD_DIM)
    _, mask = position_term(kind, HEADS)(positions()).applied(query, torch.zeros(1, 1, T, T, dtype=torch.bool))
    assert (query @ query.mT + mask).softmax(-1).isfinite().all()


@pytest.mark.parametrize("kind", [TEMPERATURE, KEY_BIAS, RELATIVE])
def test_the_controls_start_as_if_they_were_not_there(kind):
    scores = random_scores()
    assert torch.equal(scored(position_term(kind, HEADS, per_head=True).double(), scores), scores)


def test_the_published_term_starts_as_its_source_does():
    drawn = torch.stack([PublishedTerm().weight for _ in range(200)]).detach()
    assert drawn.abs().max() <= math.sqrt(6 / 11)
    assert drawn.std().item() == pytest.approx(math.sqrt(2 / 11), rel=0.05)
    assert PublishedTerm().bias.item() == 0
    assert torch.equal(_seeded(5), _seeded(5))
    assert not torch.equal(_seeded(5), _seeded(6))


def _seeded(seed):
    term = PublishedTerm()
    term.reset(torch.Generator().manual_seed(seed))
    return term.weight.detach()


def test_no_tensor_over_channels():
    """300 MB of it would be made by the published construction; no operation here makes more than n × n numbers."""
    length, channels = 512, 300
    term = PublishedTerm(channels)
    with torch.profiler.profile(profile_memory=True) as profile:
        term(positions(length))
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert length * length * 4 <= largest < 2 * length * length * 8


@pytest.mark.parametrize(("channels", "said"), [(0, "0 channels"), (2, "2 channels")])
def test_too_few_channels_are_refused(channels, said):
    for kind in (PUBLISHED, KEY_BIAS):
        with pytest.raises(ValueError, match=f"{said}.*at least 3"):
            position_term(kind, HEADS, channels)


def test_no_term_is_none():
    assert position_term(PositionTerm.NONE, HEADS) is None


@pytest.mark.parametrize("kind", KINDS)
def test_one_position_reads_itself(kind):
    query, mask = torch.randn(B, HEADS, 1, HEAD_DIM), torch.ones(B, 1, 1, 1, dtype=torch.bool)
    assert all(a is b for a, b in zip(random_term(kind)(positions(1)).applied(query, mask), (query, mask), strict=True))


def shared_scores(rotary):
    """Scores before the mask of a layer whose query is its key, [B, H, T, T], at positions of any order."""
    at = torch.randint(100_000, (B, T))
    by = rotation(at, HEAD_DIM, 10_000.0, torch.float64) if rotary else None
    made = small_projections("Q=K=V")(torch.randn(B, T, WIDTH, dtype=torch.float64), by)
    return (made.query_BTHD.transpose(1, 2) @ made.rows_BTGW.transpose(1, 2).mT) / HEAD_DIM**0.5, at


@pytest.mark.parametrize("rotary", [False, True])
def test_where_the_query_is_the_key_scores_are_symmetric(rotary):
    scores, at = shared_scores(rotary)
    assert asymmetry(scores).max() < 1e-12
    assert asymmetry(scored(random_term(TEMPERATURE), scores, at)).max() < 1e-12
    for kind in (PUBLISHED, KEY_BIAS, RELATIVE):
        assert asymmetry(scored(random_term(kind), scores, at)).min() > 1e-3, kind


def test_a_mask_and_a_softmax_end_symmetry():
    scores, _ = shared_scores(rotary=True)
    assert asymmetry(scores.softmax(-1)).min() > 1e-3
    assert asymmetry(scores.tril()).min() > 1e-3


@pytest.mark.parametrize("query_is_key", [True, False])
def test_a_relative_bias_of_equal_directions_keeps_symmetry(query_is_key):
    scores, at = shared_scores(rotary=True)
    if not query_is_key:
        scores = random_scores()
    term = random_term(RELATIVE)
    with torch.no_grad():
        term.weight[:, 16:] = term.weight[:, :16]
    assert (asymmetry(scored(term, scores, at)).max() < 1e-12) == query_is_key


def test_asymmetry_by_hand():
    upper = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    skew = torch.tensor([[0.0, 3.0], [-3.0, 0.0]])
    scores = torch.stack([upper, skew, torch.zeros(2, 2), torch.ones(2, 2)])[None]
    torch.testing.assert_close(asymmetry(scores), torch.tensor([[math.sqrt(2), 2.0, 0.0, 0.0]]))


def test_asymmetry_refuses_what_has_none():
    with pytest.raises(ValueError, match="3 query positions and 5 key positions"):
        asymmetry(torch.zeros(1, 1, 3, 5))
    masked = torch.zeros(1, 1, 3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    with pytest.raises(ValueError, match="before the mask"):
        asymmetry(masked)
