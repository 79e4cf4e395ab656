"""A family's page, table and figure say what its gaps say, and the page is safe and leads to its members."""

import json
import re
from urllib.parse import unquote

import pytest

from synthetic_records import synthetic_record, synthetic_results
from twofold.report.family import render_family, write_family_report
from twofold.report.gaps import gap_headings, gap_remarks, gap_rows, gaps_figure
from twofold.study.axes import Member
from twofold.study.gaps import Gap, build_gaps, read_gaps

VARIANTS = {"QKV": 0.0, "K=V": 0.06, "MQA": 0.03}
MIXED = (0.31, -0.29, 0.17, -0.19, 0.23, -0.21, 0.13, -0.11, 0.07, -0.08, 0.05)


def results(context, seeds, text="", variants=VARIANTS, size=1):
    parameters = {"total": 1000 * size, "attention": 600 * size, "mlp": 400 * size}
    records = [
        synthetic_record(
            name,
            2.0 + worse * 64 / context + seed / 97 + worse * seed / 31,
            seed=seed,
            text=text,
            parameters=parameters,
        )
        for name, worse in variants.items()
        for seed in range(seeds)
    ]
    return synthetic_results(records, text=text)


def family(axes, seeds=3, text="", **changes):
    """Gaps of every combination of `axes`; `changes` are folder → results that replace its own."""
    found = []
    combinations = [{}]
    for axis, values in axes.items():
        combinations = [{**one, axis: value} for one in combinations for value in values]
    for values in combinations:
        folder = "members/" + ",".join(f"{axis}={value}" for axis, value in values.items())
        size = 1 + axes["size"].index(values["size"]) if "size" in values else 1
        own = results(values.get("context", 64), seeds, text, size=size)
        found.append((Member(values, folder, None), changes.get(folder, own)))
    return build_gaps("family" + text, found, created="2026-01-02T03:04:05+00:00" + text)


def test_the_table_has_a_row_for_each_variant_in_each_member():
    gaps = family({"context": [64, 128], "packing": ["packed", "padded"]})
    headings, rows = gap_headings(gaps), gap_rows(gaps)
    assert headings[:3] == ["context", "packing", "variant"]
    places = [(context, packing) for context in ("64", "128") for packing in ("packed", "padded")]
    assert [tuple(row[:3]) for row in rows] == [(*place, variant) for place in places for variant in VARIANTS]
    shared = gaps.members[0].gap("K=V")
    row = dict(zip(headings, rows[1], strict=True))
    assert row["to baseline"].startswith(f"+{shared.difference.difference:.4f} [")
    assert row["perplexity, or gap in %"].startswith(f"+{shared.perplexity_gap.percent:.2f} % [+")
    assert dict(zip(headings, rows[0], strict=True))["to baseline"] == "baseline"
    assert row["cache bytes/token"] == "512"


def test_lines_go_along_the_context_and_dashes_and_symbols_tell_the_rest():
    gaps = family({"context": [64, 128, 256], "packing": ["packed", "padded"], "size": ["small", "tiny"]})
    figure = gaps_figure(gaps)
    assert figure.layout.xaxis.type == "log"
    assert len(figure.data) == 2 * 2 * 2  # no line for the baseline
    looks = {trace.name: (trace.line.color, trace.line.dash, trace.marker.symbol) for trace in figure.data}
    assert len(set(looks.values())) == 8
    assert {dash for name, (_, dash, _) in looks.items() if "packed" in name} == {"solid"}
    assert {dash for name, (_, dash, _) in looks.items() if "padded" in name} == {"dash"}
    trace = next(trace for trace in figure.data if trace.name == "K=V, padded, tiny")
    assert list(trace.x) == [64, 128, 256]
    members = [m for m in gaps.members if m.values["packing"] == "padded" and m.values["size"] == "tiny"]
    drawn = [
        (y, y - below, y + above)
        for y, below, above in zip(trace.y, trace.error_y.arrayminus, trace.error_y.array, strict=True)
    ]
    expected = [m.gap("K=V").perplexity_gap for m in members]
    assert drawn == [(gap.percent, pytest.approx(gap.interval[0]), pytest.approx(gap.interval[1])) for gap in expected]
    assert trace.y[0] > trace.y[-1] > 0


def test_without_contexts_sizes_are_drawn_by_their_parameters_and_packings_by_name():
    sizes = gaps_figure(family({"size": ["small", "tiny"], "packing": ["packed", "padded"]}))
    assert [list(trace.x) for trace in sizes.data] == [[1000, 2000]] * 4
    packings = gaps_figure(family({"packing": ["packed", "padded"]}))
    assert [list(trace.x) for trace in packings.data] == [["packed", "padded"]] * 2


def test_one_seed_with_few_documents_has_no_interval_and_no_bar():
    few = [synthetic_record(name, bits, names="abc", sizes=(7, 11, 13)) for name, bits in (("QKV", 2.0), ("K=V", 2.1))]
    gaps = family({"context": [64, 128]}, 1, **{"members/context=64": synthetic_results(few)})
    assert gaps.members[0].gap("K=V").perplexity_gap.interval is None
    assert "[" not in gap_rows(gaps)[1][gap_headings(gaps).index("perplexity, or gap in %")]
    trace = next(trace for trace in gaps_figure(gaps).data if trace.name == "K=V")
    assert (trace.error_y.array[0], trace.error_y.arrayminus[0]) == (0, 0)


def test_what_is_missing_is_told_and_left_out_of_the_figure():
    lost = results(128, 2, variants={"K=V": 0.06, "MQA": 0.03})
    axes = {"context": [64, 128, 256, 512]}
    gaps = family(axes, **{"members/context=128": lost, "members/context=256": None})
    said = gap_remarks(gaps)
    assert "No results yet: context 256." in said
    assert any(
        one.startswith("With context 128, differences are to K=V, because QKV has no finished run") for one in said
    )
    assert {x for trace in gaps_figure(gaps).data for x in trace.x} == {64, 512}
    partly = family(axes, **{"members/context=64": results(64, 1).model_copy(update={"unfinished": 3})})
    assert gap_remarks(partly) == ["Not finished yet with context 64: 3 runs."]


def test_members_that_learnt_too_little_are_called_out_first():
    low = results(128, 3).model_copy(update={"bigram_bits_per_byte": 2.02, "unfinished": 2})
    gaps = family({"context": [64, 128]}, **{"members/context=128": low})
    assert [member.untrained for member in gaps.members] == [(), ("K=V", "MQA")]
    said = "Trained too little to be compared, with context 128: K=V and MQA do not beat a byte-bigram model."
    assert gap_remarks(gaps)[0] == said
    page = render_family(gaps)
    assert "<h1>Trained too little to be compared, in 1 of 2 members: what K=V and MQA lose to QKV" in page
    assert f"<li>{said}</li>" in page
    assert "<h1>What K=V and MQA lose to QKV along context</h1>" in render_family(family({"context": [64, 128]}))


def test_gaps_of_before_the_warning_are_still_read(tmp_path):
    gaps = family({"context": [64, 128]})
    kept = gaps.model_dump(mode="json")
    for member in kept["members"]:
        del member["untrained"]
    (tmp_path / "gaps.json").write_text(json.dumps(kept))
    assert read_gaps(tmp_path / "gaps.json") == gaps


def test_a_sweeps_points_have_a_column():
    gaps = family({"context": [64, 128]})
    assert "ran with" not in gap_headings(gaps)
    variants = tuple(
        Gap.model_validate({**gap.model_dump(), "point": {"training.clip": 0.5}}) for gap in gaps.members[0].variants
    )
    member = gaps.members[0].model_copy(update={"variants": variants})
    swept = gaps.model_copy(update={"members": (member, *gaps.members[1:])})
    assert [row[-1] for row in gap_rows(swept)] == ["clip 0.5"] * 3 + [""] * 3


def test_the_page_escapes_loads_nothing_and_leads_to_its_members(tmp_path):
    attack = "<script>alert('x')</script><img src=x>&\"'"
    pages = [render_family(family({"context": [64, 128]}, text=text)) for text in ("", attack)]
    honest, hostile = (page.partition("<script>")[0] for page in pages)  # what is not plotly's
    tags = [re.findall(r"<[a-z][a-z0-9]*", page) for page in (honest, hostile)]
    assert tags[0] == tags[1]
    assert "<script>alert" not in pages[1]
    assert "&lt;script&gt;alert" in hostile
    links = [unquote(link) for link in re.findall(r'href="([^"]+)"', honest)]
    assert links == ["data:,", "members/context=64/report.html", "members/context=128/report.html"]
    assert not re.findall(r'\b(?:src|action)="', honest)
    assert "default-src 'none'" in honest
    path = write_family_report(family({"context": [64, 128]}), tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text().endswith("</html>\n")


def test_the_page_leads_to_no_page_that_is_not_there():
    page = render_family(family({"context": [64, 128]}, **{"members/context=128": None}))
    assert page.count("report.html") == 1
    assert "context 128: no results yet" in page
