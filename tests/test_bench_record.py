"""Bench records: what JSON always holds, files that come back whole, slopes, and figures."""

import json

import pytest

from bench_records import generate_rows, limit_rows, machine, memory_rows, record
from twofold.bench.record import ALWAYS, Row, check_writable, read_bench, write_bench
from twofold.bench.slopes import lines, slopes
from twofold.report.bench import bench_figure


def test_json_has_the_promised_keys_and_no_empty_others(tmp_path):
    write_bench(record(rows=[*generate_rows(), Row(name="generate/nothing")]), tmp_path / "b.json")
    stored = json.loads((tmp_path / "b.json").read_bytes())
    assert {"read_bandwidth_gbs", "fma_peak_gflops", "processor", "threads", "isa", "versions"} <= set(
        stored["machine"]
    )
    *full, bare = stored["rows"]
    assert set(bare) == set(ALWAYS)
    assert all(set(ALWAYS) < set(row) for row in full)
    assert None not in full[0].values()


def test_a_record_comes_back_from_its_file(tmp_path):
    made = record(left_out=("a is left out",), machine=machine(read_bandwidth_gbs=None, load_average=None))
    write_bench(made, tmp_path / "b.json")
    assert read_bench(tmp_path / "b.json") == made


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"bench": "train"}'])
def test_another_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(ValueError, match=r"b\.json.*twofold bench"):
        read_bench(tmp_path / "b.json")


def test_files_that_cannot_be_written_are_refused_before_the_work(tmp_path):
    check_writable([None, tmp_path / "new.json"])
    with pytest.raises(ValueError, match="there is no folder"):
        check_writable([tmp_path / "missing" / "b.json"])
    with pytest.raises(ValueError, match="is a folder"):
        check_writable([None, tmp_path])


def test_the_roof_is_the_longer_of_reading_and_computing():
    here = machine(read_bandwidth_gbs=40.0, fma_peak_gflops=200.0)
    assert here.roof_seconds(4e9, 1) == pytest.approx(0.1)
    assert here.roof_seconds(1, 4e9) == pytest.approx(0.02)
    assert machine(fma_peak_gflops=None).roof_seconds(1, 1) is None


def test_slopes_are_those_of_the_lines_and_of_the_bytes():
    ours, theirs = slopes(record(rows=generate_rows(ours=1e-3, theirs=4e-3, bytes_per_token=4_000)))
    assert (ours.subject, theirs.subject) == ("K=V", "Llama")
    assert ours.per_thousand == pytest.approx(1_000)  # 0.001 ms for a token are 1,000 μs for a thousand
    assert theirs.per_thousand == pytest.approx(4_000)
    assert ours.at_bandwidth == pytest.approx(4_000 * 1_000 / 40e9 * 1e6)
    assert theirs.at_bandwidth is None


def test_one_context_has_no_slope():
    assert slopes(record(rows=generate_rows()[:1])) == []


def test_an_alternative_that_every_variant_meets_is_one_line():
    rows = [row.model_copy(update={"variant": v}) for v in ("K=V", "QKV") for row in generate_rows()]
    assert {name: len(points) for name, points in lines(record(rows=rows)).items()} == {"K=V": 3, "QKV": 3, "Llama": 3}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (record("generate"), [500, 1_000, 3_000] * 2),
        (record("train"), [row.ratio for row in generate_rows()]),
        (
            record("memory", memory_rows()),
            [size / 2**30 for r in memory_rows() for size in (r.resident_bytes, r.bytes)],
        ),
        (record("memory", limit_rows()), [3_072, 40_960]),
    ],
    ids=["generate", "ratios", "memory", "limit"],
)
def test_figures_show_what_was_measured(made, expected):
    drawn = [value for trace in bench_figure(made).data for value in trace.x]
    assert sorted(drawn) == sorted(expected)


def test_a_record_without_rows_has_no_figure():
    with pytest.raises(ValueError, match="no rows"):
        bench_figure(record(rows=[]))


def test_the_share_of_an_alternatives_cache():
    row = Row(name="export/x/1", cache_bytes=3, alternative_cache_bytes=4)
    assert row.cache_share == 0.75
    assert Row(name="export/x/1", cache_bytes=3).cache_share is None
    assert Row(name="export/x/1").cache_share is None
