"""Every study that the page on tasks shows is one that can be run."""

import re
from pathlib import Path

import pytest
import yaml

from twofold.study.load import checked_as
from twofold.trials.kinds import KINDS
from twofold.trials.spec import TaskStudySpec

PAGE = (Path(__file__).parent.parent / "docs/tasks.md").read_text()
SHOWN = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("content", SHOWN, ids=str)
def test_what_is_shown_is_a_list_of_tasks(content):
    whole = {"name": "shown", "variants": ["QKV"], "steps": 20, **content}
    assert checked_as(TaskStudySpec, whole, lambda place: f"{place}: ").trials


def test_every_task_has_its_place_on_the_page():
    assert not [name for name in KINDS if f"`{name}`" not in PAGE and f"`task: {name}`" not in PAGE]
