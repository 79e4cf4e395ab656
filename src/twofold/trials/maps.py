"""The attention maps of a study's runs, which stay in their records: results.json does not hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from twofold.study.plan import STUDY_FILE, Course, courses
from twofold.study.record import RECORD_FILE
from twofold.trials.plan import places_of, read_task_study
from twofold.trials.record import AttentionMap, read_trial_record

Maps = Mapping[str, Mapping[str, tuple[AttentionMap, ...]]]
"""Task → label → the maps of its first reported run that is finished, by layer and head."""


def read_maps(out: Path) -> Maps:
    """What the runs in a study's folder keep; empty where it holds no study, and without those that keep none.

    Raises ValueError where the study or a record cannot be read.
    """
    if not (out / STUDY_FILE).is_file():
        return {}
    found = {}
    for trial, folder in places_of(read_task_study(out), out):
        of_task = {course.contender.label: maps for course in courses(trial, folder) if (maps := _first(course))}
        if of_task:
            found[trial.name] = of_task
    return found


def _first(course: Course) -> tuple[AttentionMap, ...]:
    run = next((run for run in course.reported if run.finished), None)
    return read_trial_record(run.folder / RECORD_FILE).maps if run else ()
