"""Gives the harness the documents of a local task. The task files name `read_documents`.

The harness imports this module as soon as it reads a task file that was named by its path, which is before it looks
for the model: so `lm_eval` knows the model `twofold` wherever one of its tasks is such a file.
"""

from __future__ import annotations

import json
from typing import Any

from datasets import Dataset, DatasetDict

import twofold.evaluation.downstream  # noqa: F401 (importing it registers the model)
from twofold.evaluation.local_tasks.make import FOLDER


def read_documents(file: str, **_: Any) -> DatasetDict:
    """The documents of a file in this folder: split `test`, and `train`, whose documents serve as solved examples."""
    splits: dict[str, list[dict[str, Any]]] = {}
    for line in (FOLDER / file).read_text().splitlines():
        document = json.loads(line)
        splits.setdefault(document.pop("split"), []).append(document)
    return DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
