"""Studies with some keys replaced from the command line."""

import re

import pytest

from twofold.study.spec import StudySpec
from twofold.trials.load import load_any_study


def test_a_setting_replaces_a_value_and_nothing_else():
    study, changed = load_any_study("demo"), load_any_study("demo", ["model.layers=3", "seeds=[4, 5]"])
    assert isinstance(study, StudySpec)
    assert (changed.model.layers, changed.seeds) == (3, (4, 5))
    kept = {"model", "seeds"}
    assert changed.model_dump(exclude=kept) == study.model_dump(exclude=kept)


def test_a_key_that_the_file_leaves_out_may_be_set():
    assert load_any_study("demo", ["match.parameters=QKV"]).match.parameters == "QKV"
    assert load_any_study("demo", ["seeds.0=7"]).seeds == (7,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.layers", "write KEY=VALUE with a key"),
        ("=3", "write KEY=VALUE with a key"),
        ("model.layers=[", "not YAML"),
        ("variants.99=MQA", "no 99"),
        ("name.first=x", "no 'first'"),
        ("model.layers=0", "--set model.layers: "),
        ("model.lairs=2", "did you mean 'layers'"),
        ("tokens=many", "--set tokens: "),
    ],
)
def test_a_setting_that_will_not_do_is_named(change, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        load_any_study("demo", [change])
    assert "\n" not in str(error.value)
