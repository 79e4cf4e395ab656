"""Training tokens to a loss, by hand on curves of a few points."""

import pytest

from synthetic_records import synthetic_record, synthetic_results
from twofold.study.progress_to_loss import progress_to, tokens_to
from twofold.study.record import CurvePoint


def curve(*losses):
    return tuple(CurvePoint(tokens=100 * (i + 1), loss=loss) for i, loss in enumerate(losses))


def results_of(*runs):
    """(variant, seed, losses) each."""
    records = [synthetic_record(v, 2.0, seed=s).model_copy(update={"curve": curve(*losses)}) for v, s, losses in runs]
    return synthetic_results(records)


def test_the_first_point_that_is_low_enough_counts():
    points = curve(3.0, 2.0, 2.2, 1.9)
    assert [tokens_to(loss, points) for loss in (4.0, 3.0, 2.5, 2.0, 1.95, 1.8)] == [100, 100, 200, 200, 400, None]
    assert tokens_to(2.0, ()) is None


def test_means_over_seeds_and_the_share_of_the_baseline():
    results = results_of(
        ("QKV", 0, (3, 2, 1)),
        ("QKV", 1, (3, 3, 1)),
        ("MQA", 0, (3, 1, 1)),
        ("MQA", 1, (1, 1, 1)),
        ("K=V", 1, (3, 3, 2)),
    )
    qkv, mqa, shared = progress_to(1.5, results)
    assert (qkv.label, qkv.seeds, qkv.tokens, qkv.mean, qkv.to_baseline) == ("QKV", (0, 1), (300, 300), 300, 1)
    assert (mqa.tokens, mqa.mean, mqa.to_baseline) == ((200, 100), 150, 0.5)
    assert (shared.tokens, shared.mean, shared.to_baseline) == ((None,), None, None)


def test_the_share_is_of_the_same_seeds():
    results = results_of(("QKV", 0, (1, 1)), ("QKV", 1, (3, 1)), ("MQA", 1, (1, 1)), ("K=V", 7, (1, 1)))
    _, mqa, elsewhere = progress_to(1.5, results)
    assert mqa.to_baseline == 0.5
    assert (elsewhere.mean, elsewhere.to_baseline) == (100, None)


@pytest.mark.parametrize("loss", [0, -1.0, float("nan"), float("inf")])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(ValueError, match="a training loss is a number of nats per token above 0"):
        progress_to(loss, results_of(("QKV", 0, (1,))))
