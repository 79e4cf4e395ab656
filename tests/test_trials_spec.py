"""Studies of tasks: what a file may say, and what is refused with the place and a remedy."""

import pytest
import yaml

from tiny_trials import RECALL, REVERSE, content, spec
from twofold.study.load import checked_as
from twofold.trials.load import all_builtin_studies, load_any_study
from twofold.trials.spec import TaskStudySpec


def refused(**changes):
    with pytest.raises(ValueError, match=r"\S") as error:
        checked_as(TaskStudySpec, content(**changes), lambda place: f"{'.'.join(map(str, place))}: ")
    return str(error.value)


def test_a_study_is_written_down_as_it_was_given():
    study = spec(tasks=[REVERSE, RECALL | {"name": "recall of two", "settings": {"batch": 3}}, "copy"])
    again = TaskStudySpec.model_validate_json(study.model_dump_json())
    assert again == study
    assert [entry["task"] for entry in study.model_dump(mode="json")["tasks"]] == ["reverse", "recall", "copy"]


def test_a_task_takes_the_study_s_settings_where_it_has_none_of_its_own():
    study = spec(tasks=[REVERSE, REVERSE | {"name": "longer", "steps": 9, "settings": {"learning_rate": 0.5}}])
    plain, longer = study.trials
    assert (plain.steps, longer.steps) == (7, 9)
    assert (plain.training.batch, longer.training.batch) == (5, 5)
    assert longer.training.learning_rate == 0.5 != plain.training.learning_rate


def test_a_causal_task_is_given_to_a_decoder_with_its_own_sizes():
    study = spec(tasks=[RECALL])
    (trial,) = study.trials
    assert [one.label for one in trial.contenders] == ["QKV", "K=V MQA"]
    sizes = trial.contenders[0].architecture(trial.task.form)
    assert (sizes.width, sizes.mlp, sizes.vocab) == (24, 31, 14)


def test_the_count_of_runs_is_that_of_sweep_and_seeds():
    study = spec(tasks=[REVERSE, RECALL], sweep={"training.learning_rate": [0.1, 0.2, 0.3]}, seeds=[0, 1, 2, 3])
    assert study.run_count == 2 * 2 * (3 + 3)


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"tasks": ["revers"]}, "tasks.0.task", "did you mean 'reverse'"),
        ({"tasks": [REVERSE | {"lenght": 7}]}, "tasks.0.lenght", "did you mean 'length'"),
        ({"tasks": [REVERSE | {"length": 0}]}, "tasks.0", "length"),
        ({"tasks": [REVERSE, REVERSE]}, "tasks.1", "two tasks are called 'reverse'"),
        ({"tasks": [17]}, "tasks.0", "a task's name"),
        ({"variants": ["K=W"]}, "variants.0", "K=W"),
        ({"variants": ["QKV", "QKV"]}, "variants.1", "named twice"),
        ({"variants": ["GQA-3"]}, "variants.0", "3"),
        ({"model": {"widht": 3}}, "model", "widht"),
        ({"model": {"norm": "both"}}, "model", "norm"),
        ({"seeds": [1, 1]}, "seeds.1", "named twice"),
        ({"sweep": {"model.width": [8, 16]}}, "sweep.model.width", "sweeps training alone"),
        ({"sweep": {"training.learning_rate": [0.1]}}, "sweep", "two values"),
        ({"baseline": "MQA"}, "baseline", "QKV, Q=K +"),
        ({"tasks": [REVERSE | {"settings": {"batch": 0}}]}, "tasks.0.settings", "batch"),
        ({"looks": 9}, "tasks.0", "7 steps cannot be looked at 9 times"),
        ({"stepz": 9}, "stepz", "did you mean 'steps'"),
        ({"tasks": [RECALL | {"variants": ["QKV", "linear +"]}]}, "", "+"),
    ],
)
def test_faults_name_their_place_and_a_remedy(changes, where, what):
    message = refused(**changes)
    assert message.startswith(where)
    assert what in message
    assert "\n" not in message


@pytest.mark.parametrize("name", all_builtin_studies())
def test_every_study_that_comes_with_the_package_is_sound(name):
    study = load_any_study(name)
    assert study.name == name
    if isinstance(study, TaskStudySpec):
        assert len(study.seeds) >= 1
        assert study.description


def test_a_file_s_fault_is_shown_at_its_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content(tasks=["copy", "sotr"]), sort_keys=False))
    with pytest.raises(ValueError, match=r"mine.yaml:\d+: .*did you mean 'sort'"):
        load_any_study(str(path))
