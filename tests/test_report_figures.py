"""Figures show the numbers of the results, stay readable, and keep their contrast."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_records import synthetic_record, synthetic_results
from twofold.report.figures import curves_figure, differences_figure, gaps_figure
from twofold.report.frontier import frontier_figure
from twofold.report.labels import Box, label_box, place_labels
from twofold.report.look import BLUE, DARK_PAPER, LIGHT_PAPER, LINE_COLOURS, NEUTRAL, ORANGE, write_image

VARIANTS = (("QKV", 2.0, 704), ("K=V", 2.2, 352), ("GQA-2", 2.1, 352), ("MQA", 2.3, 88))


def results_of(variants=VARIANTS, seeds=(0,), bigram=3.61):
    runs = [
        synthetic_record(name, bits + seed / 97, seed=seed, bytes_per_token=size)
        for name, bits, size in variants
        for seed in seeds
    ]
    return synthetic_results(runs, bigram=bigram)


def points(figure):
    return {
        name: (x, y)
        for trace in figure.data
        if trace.text
        for name, x, y in zip(trace.text, trace.x, trace.y, strict=True)
    }


def test_frontier_shows_each_variant_at_its_cache_and_quality():
    shown = points(frontier_figure(results_of()))
    assert shown == {name: (size, pytest.approx(bits)) for name, bits, size in VARIANTS}


def test_frontier_groups_points_by_verdict():
    groups = {trace.name: set(trace.text) for trace in frontier_figure(results_of()).data if trace.text}
    assert groups == {"on the frontier": {"QKV", "GQA-2", "MQA"}, "dominated": {"K=V"}}


def test_staircase_steps_down_through_the_best_only():
    line = next(trace for trace in frontier_figure(results_of()).data if trace.mode == "lines")
    assert list(line.x[:-1]) == [88, 352, 352, 704, 704]
    assert list(line.y) == pytest.approx([2.3, 2.3, 2.1, 2.1, 2.0, 2.0])


@pytest.mark.parametrize(("bigram", "is_line"), [(2.15, True), (2.4, True), (9.0, False)])
def test_bigram_level_is_a_line_where_it_is_near_and_words_where_it_is_far(bigram, is_line):
    figure = frontier_figure(results_of(bigram=bigram))
    low, high = figure.layout.yaxis.range
    assert (low < bigram < high) == is_line
    assert len(figure.layout.shapes) == is_line
    assert f"{bigram:.4f}" in figure.layout.annotations[0].text
    assert low < 2.0 < 2.3 < high


def test_all_points_and_their_ticks_lie_inside_the_axes():
    axis = frontier_figure(results_of()).layout.xaxis
    assert list(axis.tickvals) == [88, 352, 704]
    assert list(axis.ticktext) == ["88 B", "352 B", "704 B"]
    assert all(axis.range[0] < math.log10(tick) < axis.range[1] for tick in axis.tickvals)


def test_differences_show_the_interval_that_the_results_hold():
    results = results_of(seeds=(0, 1, 2))
    figure = differences_figure(results)
    drawn = {
        name: (x - below, x + above)
        for trace in figure.data
        for name, x, below, above in zip(trace.y, trace.x, trace.error_x.arrayminus, trace.error_x.array, strict=True)
    }
    expected = {e.variant: e.difference_to_baseline.interval for e in results.summary if e.difference_to_baseline}
    assert drawn == {name: pytest.approx(interval) for name, interval in expected.items()}
    assert list(figure.layout.yaxis.categoryarray) == ["MQA", "K=V", "GQA-2"]  # upwards: the largest cache on top


def test_curves_hold_every_run_and_gaps_all_but_the_baseline():
    results = results_of(seeds=(0, 1))
    curves, gaps = curves_figure(results), gaps_figure(results)
    assert len(curves.data) == len(results.runs)
    assert sum(trace.showlegend for trace in curves.data) == len(VARIANTS)
    assert {trace.name for trace in gaps.data} == {"K=V", "GQA-2", "MQA"}
    run, base = results.runs[2], results.runs[0]
    assert (run.variant, base.variant, run.seed) == ("K=V", "QKV", base.seed)
    assert gaps.data[0].y[-1] == pytest.approx(run.curve[-1].loss - base.curve[-1].loss)
    same = {trace.name: trace.line for trace in curves.data}
    assert all(trace.line == same[trace.name] for trace in gaps.data)


def test_gaps_compare_equal_seeds_only():
    results = synthetic_results([synthetic_record("QKV", 2.0, seed=0), synthetic_record("MQA", 2.1, seed=1)])
    assert not gaps_figure(results).data


def test_labels_of_points_far_apart_overlap_nothing():
    places = [(0.1, 0.9), (0.5, 0.5), (0.5, 0.3), (0.9, 0.1), (0.9, 0.3)]
    names = ["K=V MQA", "K=V GQA-2", "MQA", "QKV", "Q=K"]
    boxes = [label_box(*each) for each in zip(places, names, place_labels(places, names), strict=True)]
    assert all(a.overlap(b) == 0 for i, a in enumerate(boxes) for b in boxes[:i])


def test_labels_keep_off_lines_and_inside_the_plot():
    line = ((0.5, 0.5), (1.0, 0.5))
    assert place_labels([(0.5, 0.5)], ["name"], [line]) == ["top right"]
    assert place_labels([(0.99, 0.5)], ["name"]) == ["top left"]


boxes = st.tuples(*[st.integers(0, 13)] * 4).map(lambda c: Box(c[0], c[1], c[0] + c[2], c[1] + c[3]))


@given(boxes, boxes)
@settings(max_examples=60, deadline=None)
def test_overlap_counts_common_cells(a, b):
    def cells(box):
        return {(x, y) for x in range(box.left, box.right) for y in range(box.bottom, box.top)}

    assert a.overlap(b) == len(cells(a) & cells(b)) == b.overlap(a)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", sorted({BLUE, ORANGE, NEUTRAL, *LINE_COLOURS}))
@pytest.mark.parametrize("paper", [LIGHT_PAPER, DARK_PAPER])
def test_marks_have_a_contrast_of_three_to_one_on_both_papers(colour, paper):
    bright, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 3


def test_image_of_an_unknown_kind_is_refused(tmp_path):
    path = tmp_path / "figure.doc"
    with pytest.raises(ValueError, match=r"figure\.doc: an image ends in \.svg, \.png, \.pdf"):
        write_image(frontier_figure(results_of()), path)
    assert not path.exists()


def test_image_without_kaleido_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("plotly.io._kaleido.kaleido_available", lambda: False)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[images\]'"):
        write_image(frontier_figure(results_of()), tmp_path / "figure.svg")
