"""The tasks that a study can name."""

from __future__ import annotations

from typing import get_args

from twofold.tasks.anomaly import AnomalyTask
from twofold.tasks.images import ImagesTask
from twofold.tasks.recall import InductionTask, RecallTask
from twofold.tasks.segmentation import SegmentationTask
from twofold.tasks.sentences import RolesTask
from twofold.tasks.sequences import SequenceTask
from twofold.tasks.task import TaskSpec
from twofold.tasks.text_files import LabelledFilesTask

_ALL: tuple[type[TaskSpec], ...] = (
    SequenceTask,
    RecallTask,
    InductionTask,
    RolesTask,
    LabelledFilesTask,
    ImagesTask,
    AnomalyTask,
    SegmentationTask,
)

KINDS: dict[str, type[TaskSpec]] = {
    name: kind for kind in _ALL for name in get_args(kind.model_fields["task"].annotation)
}
"""Name of a task → what describes it."""
