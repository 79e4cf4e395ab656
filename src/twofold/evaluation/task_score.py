"""How well a model does a task: accuracy over all answers, or mean intersection over union."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import PreTrainedModel

from twofold.evaluation.heldout import evaluation_mode
from twofold.tasks.batches import batches
from twofold.tasks.task import IGNORED, Examples, Form, Metric


@dataclass(frozen=True)
class TaskScore:
    """`score` between 0 and 1 over `answers` in `examples`, `loss` in nats per answer, `parts` the score of each.

    `guess` is the score of the commonest answer, always given.
    """

    score: float
    guess: float
    loss: float
    examples: int
    answers: int
    parts: dict[str, float] = field(default_factory=dict)


def score_task(
    model: PreTrainedModel,
    form: Form,
    examples: Examples,
    metric: Metric = "accuracy",
    part_names: tuple[str, ...] = (),
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> TaskScore:
    """Score a model on examples.

    "accuracy" is the share of right answers among all that are asked, of the likeliest class each. "mean IoU" is the
    mean over classes of the answers that are right, over those that are, or are said to be, of the class (Jaccard);
    a class that neither occurs nor is said does not count.
    """
    said, nats = [], 0.0
    with evaluation_mode(model), torch.no_grad():
        for places, inputs in batches(form, examples, batch_size):
            labels = torch.from_numpy(examples.labels[places]).to(model.device)
            wanted = {name: value.to(model.device) for name, value in inputs.items() if "labels" not in name}
            logits = model(**wanted).logits
            flat, answers = logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1)
            nats += float(F.cross_entropy(flat, answers, ignore_index=IGNORED, reduction="sum"))
            said.append(logits.argmax(-1).cpu().numpy())
            if progress:
                progress(places.stop, len(examples))
    given = np.concatenate(said)
    asked = examples.labels != IGNORED
    count = int(asked.sum())
    parts = {}
    for index, name in enumerate(part_names):
        assert examples.parts is not None
        own = examples.parts == index
        if asked[own].any():
            parts[name] = _score(given[own], examples.labels[own], metric, form.classes)
    score = _score(given, examples.labels, metric, form.classes)
    guess = _score(np.full_like(given, _commonest(examples.labels)), examples.labels, metric, form.classes)
    return TaskScore(score, guess, nats / count, len(examples), count, parts)


def _commonest(labels: NDArray[np.int64]) -> int:
    return int(np.bincount(labels[labels != IGNORED]).argmax())


def _score(given: NDArray[np.int64], labels: NDArray[np.int64], metric: Metric, classes: int) -> float:
    asked = labels != IGNORED
    said, right = given[asked], labels[asked]
    if metric == "accuracy":
        return float((said == right).mean())
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (right, said), 1)
    both, either = np.diag(table), table.sum(0) + table.sum(1) - np.diag(table)
    return float((both[either > 0] / either[either > 0]).mean())
