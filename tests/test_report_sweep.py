"""The sweep in a report: its table, its figure and its sentences say what the results say."""

import pytest

from synthetic_records import synthetic_record, synthetic_results
from twofold.report import tables
from twofold.report.headline import notes
from twofold.report.page import render
from twofold.report.sweep import edge_notes, ran_with, sweep_figure, sweep_table
from twofold.study.picking import Tried
from twofold.study.results import to_csv

KEY = "training.learning_rate"
SCORES = {"QKV": {0.001: 2.3, 0.003: 2.1, 0.01: 2.2}, "K=V": {0.001: 2.4, 0.003: 2.3, 0.01: 2.25}}
CHOSEN = {"QKV": 0.003, "K=V": 0.01}


def swept(scores=SCORES, chosen=CHOSEN, text=""):
    tries = [
        Tried(variant=label + text, point={KEY: rate}, seed=0, bits_per_byte=bits, chosen=chosen.get(label) == rate)
        for label, of in scores.items()
        for rate, bits in of.items()
    ]
    records = [synthetic_record(label, 2.0, point={KEY: rate}, text=text) for label, rate in chosen.items()]
    return synthetic_results(records, sweep=tries)


def test_the_table_has_every_point_and_marks_the_chosen():
    found = sweep_table(swept())
    assert found.points == ["learning_rate 0.001", "learning_rate 0.003", "learning_rate 0.01"]
    assert [label for label, _ in found.rows] == list(SCORES)
    for label, cells in found.rows:
        assert [cell.text for cell in cells] == [f"{bits:.4f}" for bits in SCORES[label].values()]
        assert [cell.kind == "chosen" for cell in cells] == [rate == CHOSEN[label] for rate in SCORES[label]]


def test_points_that_diverged_or_are_not_tried_yet_are_told():
    scores = {"QKV": {0.001: 2.3, 0.003: 2.1}, "K=V": {0.001: None}}
    rows = dict(sweep_table(swept(scores, {"QKV": 0.003})).rows)
    assert [(cell.text, cell.kind) for cell in rows["K=V"]] == [("diverged", "diverged"), ("–", "missing")]


def test_the_notes_say_who_ran_with_what_on_which_documents_and_who_stands_at_the_edge():
    results = swept()
    said = " ".join(notes(results))
    assert "its own best point of the sweep: QKV with learning_rate 0.003; K=V with learning_rate 0.01." in said
    scored, whole = results.runs[0].validation.bytes, results.corpus.held_out_bytes
    assert f"everything reported here is of the other half alone ({scored:,} of {whole:,} bytes)" in said
    assert edge_notes(results) == ["At the edge of the sweep: K=V with learning_rate 0.01; a wider one may do better."]
    assert edge_notes(swept(chosen={"QKV": 0.003, "K=V": 0.003})) == []


def test_the_figure_has_a_line_for_each_variant_and_a_star_where_it_ran():
    figure = sweep_figure(swept())
    assert figure.layout.xaxis.type == "log"
    assert [trace.name for trace in figure.data] == list(SCORES)
    for trace in figure.data:
        assert dict(zip(trace.x, trace.y, strict=True)) == SCORES[trace.name]
        assert [x for x, symbol in zip(trace.x, trace.marker.symbol, strict=True) if symbol == "star"] == [
            CHOSEN[trace.name]
        ]


def test_a_grid_has_a_line_for_each_value_of_the_other_keys():
    tries = [
        Tried(variant="QKV", point={"model.block": block, KEY: rate}, seed=0, bits_per_byte=2 + rate, chosen=False)
        for block in ("paper", "modern")
        for rate in (0.1, 0.0)
    ]
    figure = sweep_figure(synthetic_results([synthetic_record("QKV", 2.0)], sweep=tries))
    assert [trace.name for trace in figure.data] == ["QKV, block paper", "QKV, block modern"]
    assert [trace.x for trace in figure.data] == [(0.0, 0.1)] * 2
    assert figure.layout.xaxis.type == "linear"  # 0 has no logarithm


def test_words_have_a_table_and_no_figure():
    tries = [
        Tried(variant="QKV", point={"model.block": block}, seed=0, bits_per_byte=2.0, chosen=block == "paper")
        for block in ("paper", "modern")
    ]
    results = synthetic_results([synthetic_record("QKV", 2.0, point={"model.block": "paper"})], sweep=tries)
    assert not sweep_figure(results).data
    assert len(sweep_table(results).rows) == 1
    assert ran_with(results) == {"QKV": "block paper"}
    assert 'id="figure-sweep"' not in render(results)


def test_the_page_has_the_sweep_where_there_is_one():
    page = render(swept())
    assert '<div class="figure" id="figure-sweep"' in page
    assert "2.2500 ✓" in page
    assert [row.ran_with for row in tables.summary_rows(swept())] == ["learning_rate 0.003", "learning_rate 0.01"]
    plain = render(synthetic_results([synthetic_record("QKV", 2.0)]))
    assert "sweep" not in plain.partition("<script>")[0].partition("</style>")[2]
    assert not notes(synthetic_results([synthetic_record("QKV", 2.0)]))[0].startswith("Each variant ran")


def test_labels_and_points_are_escaped():
    page = render(swept(text="<i>", chosen={"QKV": 0.003, "K=V": 0.01}))
    assert "<i>" not in page.partition("<script>")[0]
    assert "&lt;i&gt;" in page


def test_each_line_of_the_csv_has_its_point():
    lines = to_csv(swept()).splitlines()
    column = lines[0].split(",").index("point_training.learning_rate")
    assert [line.split(",")[column] for line in lines[1:]] == ["0.003", "0.01"]
    assert "point" not in to_csv(synthetic_results([synthetic_record("QKV", 2.0)])).splitlines()[0]


@pytest.mark.parametrize("diverged", [0, 1])
def test_the_total_counts_tries_that_are_not_reported(diverged):
    scores = {"QKV": {0.001: None if diverged else 2.3, 0.003: 2.1}}
    results = swept(scores, {"QKV": 0.003})
    assert results.total == 2 - diverged
