"""Caches that do not grow with every token: a study says at how many tokens their bytes per token were taken."""

import pytest

from synthetic_records import synthetic_record, synthetic_results
from twofold.cli.study_tables import remarks
from twofold.report.headline import bounded_text, notes


def with_sizes(sizes):
    results = synthetic_results([synthetic_record(variant, 2.0) for variant in ("QKV", "K=V")])
    first = results.runs[0].label
    runs = tuple(
        run.model_copy(update={"configuration": {**run.configuration, "sizes": sizes if run.label == first else {}}})
        for run in results.runs
    )
    return results.model_copy(update={"runs": runs}), first


@pytest.mark.parametrize("sizes", [{"variant": "K=V linear"}, {"variant": "K=V", "window": 64, "layer_pattern": "SL"}])
def test_bytes_of_a_window_or_a_state_are_told_with_their_tokens(sizes):
    results, label = with_sizes(sizes)
    run = next(run for run in results.runs if run.label == label)
    assert f"{label} {run.cache.bytes_used:,} bytes at {run.cache.tokens:,} tokens" in bounded_text(results)
    assert bounded_text(results) in remarks(results)
    assert any(bounded_text(results) in note for note in notes(results))


@pytest.mark.parametrize("sizes", [{}, {"variant": "K=V CLA-2", "window": 0}])
def test_nothing_is_said_of_caches_that_grow(sizes):
    results, _ = with_sizes(sizes)
    assert not bounded_text(results)
    assert not any("does not grow" in said for said in [*remarks(results), *notes(results)])
