"""The record of `twofold explain`: what it takes, refuses and gives back."""

import json
import math
import subprocess
import sys

import pytest
from pydantic import ValidationError

from synthetic_explanations import HEADS, LAYERS, synthetic_explanation
from twofold.explain.record import LayerMeasures, as_json, read_explanations


@pytest.mark.parametrize("count", [1, 2])
def test_records_come_back_from_json(tmp_path, count):
    made = [synthetic_explanation(f"model{number}") for number in range(count)]
    content = [as_json(one, maps=True) for one in made]
    (tmp_path / "explain.json").write_text(json.dumps(content[0] if count == 1 else content))
    assert read_explanations(tmp_path / "explain.json") == made


def test_maps_can_be_left_out():
    one = synthetic_explanation()
    assert len(as_json(one, maps=True)["maps"]) == len(LAYERS) * HEADS
    assert "maps" not in as_json(one, maps=False)


def test_new_measures_need_no_change_and_parts_that_nobody_knows_are_refused():
    assert LayerMeasures(layer=0, rank={"new": 1.0, "list": (1.0, 2.0)}).number("rank", "new") == 1
    with pytest.raises(ValidationError):
        LayerMeasures(layer=0, strange={})


@pytest.mark.parametrize("value", [math.nan, math.inf, (1.0, math.nan)])
def test_no_number_is_none_and_never_nan(value):
    with pytest.raises(ValidationError):
        LayerMeasures(layer=0, similarity={"cosine_kv": value})
    assert LayerMeasures(layer=0, similarity={"cosine_kv": None}).number("similarity", "cosine_kv") is None


def test_series_go_over_the_layers_and_are_empty_where_nothing_was_measured():
    one = synthetic_explanation()
    assert one.series("rank", "k") == [13.0] * len(LAYERS)
    assert one.series("similarity", "r2_v_from_k")[LAYERS.index(2)] is None
    assert one.series("similarity", "absent") == one.series("rank", "joint_kv_energy") == []
    assert list(one.names("rank"))[:5] == ["k", "k_most", "k_random", "joint_kv_dims", "joint_kv_energy"]


@pytest.mark.parametrize(
    ("change", "told"), [(lambda text: text[:-9], "not JSON"), (lambda text: text.replace('"seed"', '"sed"'), "seed")]
)
def test_damaged_files_are_named(tmp_path, change, told):
    path = tmp_path / "explain.json"
    path.write_text(change(json.dumps(as_json(synthetic_explanation(), maps=True))))
    with pytest.raises(ValueError, match=told) as error:
        read_explanations(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("count", [0, 3])
def test_neither_none_nor_three_are_read(tmp_path, count):
    path = tmp_path / "explain.json"
    path.write_text(json.dumps([as_json(synthetic_explanation(), maps=False)] * count))
    with pytest.raises(ValueError, match=f"holds {count} explanations, and one or two"):
        read_explanations(path)


@pytest.mark.parametrize(("content", "told"), [("[" * 100_000, "not JSON"), ("5", "all: Input should be")])
def test_what_is_no_record_is_told_in_a_line(tmp_path, content, told):
    (tmp_path / "explain.json").write_text(content)
    with pytest.raises(ValueError, match=told) as error:
        read_explanations(tmp_path / "explain.json")
    assert "\n" not in str(error.value)


def test_the_record_and_its_page_never_import_torch():
    code = "import sys, twofold.explain.record, twofold.report.explain_page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
