"""Tasks of lm-evaluation-harness on one model: values with standard errors, beside what guessing gives."""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import math
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from twofold.evaluation.local_tasks.make import FOLDER

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from twofold.evaluation.downstream import TwofoldLM

CHOSEN = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")
"""Metrics that guessing among the choices of a document would reach by chance."""

PER_WEIGHT = {"word_perplexity": None, "byte_perplexity": None, "bits_per_byte": 1 / math.log(2)}
"""Metrics of summed nats over summed words or bytes: what a nat per byte is worth, or None for its exponential."""

RESAMPLES = 1_000
"""Of the documents, for the few metrics whose standard error has no formula."""

BOUND = 2.0
"""Standard errors within which a value may be chance."""

SEED = 1234
"""As in the harness, so that it chooses the same examples."""

TALKATIVE = ("lm_eval", "huggingface_hub", "datasets", "twofold.evaluation.downstream")


@dataclass(frozen=True)
class Score:
    """One metric of one task (or group of tasks) over `documents`, each after `fewshot` solved examples.

    `error` is the standard error, None for one document or where the harness knows none. `chance` is the mean over
    documents of right choices / choices, None where nothing is chosen.
    """

    task: str
    metric: str
    value: float
    error: float | None
    chance: float | None
    documents: int
    fewshot: int | None
    higher_is_better: bool | None

    @property
    def may_be_chance(self) -> bool:
        """Whether the value lies within `BOUND` standard errors of chance."""
        if self.chance is None or self.error is None:
            return False
        return abs(self.value - self.chance) <= BOUND * self.error


@dataclass(frozen=True)
class Downstream:
    """Scores of all tasks; `cut` contexts of all requests were longer than `context` tokens and lost their beginning.

    `versions` are the tasks', `harness` that of lm-evaluation-harness: values are comparable where both agree.
    """

    scores: tuple[Score, ...]
    context: int
    cut: int
    harness: str
    versions: dict[str, Any]


def require_harness() -> None:
    """Raise ValueError where lm-evaluation-harness is not installed."""
    if find_spec("lm_eval") is None:
        raise ValueError("Tasks need lm-evaluation-harness, not installed here: pip install 'twofold[downstream]'")


def evaluate_tasks(
    lm: TwofoldLM,
    tasks: Sequence[str],
    *,
    fewshot: int | None = None,
    limit: int | None = None,
    folders: Sequence[Path] = (),
) -> Downstream:
    """Run tasks by name: the package's own (`local_tasks`), those of `folders` with task files, and the harness's.

    `fewshot` examples go before each document, by default as many as a task says; a task that fixes none keeps to
    that. `limit`: the first documents of each task only. Raises ValueError in one line for a task that is not known
    or cannot be read, and for counts that cannot be.
    """
    if (fewshot is not None and fewshot < 0) or (limit is not None and limit < 1):
        raise ValueError(f"examples must be at least 0 and documents at least 1, got {fewshot} and {limit}")
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder: give one with task files (.yaml) of lm-evaluation-harness")
    cut_before = lm.cut
    with _quiet(), _seeded():
        import lm_eval
        from lm_eval.evaluator import evaluate

        manager = _manager(tasks, [FOLDER, *folders])
        loaded: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}}
        for name in dict.fromkeys(tasks):
            made = _loaded(manager, name)
            for kind, into in loaded.items():
                into.update(made[kind])
        for task in loaded["tasks"].values():
            _set_fewshot(task, fewshot)
        try:
            # Not `simple_evaluate`: it spends seconds on a description of this machine.
            found = evaluate(lm, loaded, limit=limit, bootstrap_iters=RESAMPLES)
        except (ValueError, AssertionError, IndexError, KeyError) as error:  # more examples than there are, …
            raise ValueError(f"The harness cannot run {', '.join(tasks)}: {_reason(error)}") from error
    scores = [score for name in found["results"] for score in _scores(found, name)]
    return Downstream(tuple(scores), lm.max_length, lm.cut - cut_before, lm_eval.__version__, dict(found["versions"]))


def _manager(tasks: Sequence[str], folders: list[Path]) -> TaskManager:
    """Knows the harness's own tasks only if one is asked for: their index reads some 15,000 files."""
    from lm_eval.tasks import TaskManager

    paths: list[str | Path] = [str(folder) for folder in folders]
    manager = TaskManager(include_path=paths, include_defaults=False)
    return manager if set(tasks) <= set(manager.all_tasks) else TaskManager(include_path=paths)


def _loaded(manager: TaskManager, name: str) -> Any:
    """The task of that name, or those of a group or tag, with their groups."""
    if name not in manager.task_index:
        near = difflib.get_close_matches(name, manager.all_tasks, n=3)
        advice = f"Did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"There is no task {name!r}. {advice}`lm_eval ls tasks` lists those of the harness; your own need "
            "--task-path"
        )
    try:
        return manager.load([name])
    except Exception as error:  # task files run code of their own, and datasets raise errors of many kinds
        advice = ""
        if isinstance(error, ConnectionError):
            advice = "; without a network its dataset must be in the cache of `datasets`, or take a local task"
        raise ValueError(f"The task {name!r} cannot be read: {_reason(error)}{advice}") from error


def _set_fewshot(task: Any, fewshot: int | None) -> None:
    """As many examples as asked for, or as the task says; a task that says 0 means it (the harness's rule)."""
    own = task.get_config("num_fewshot")
    if own is None or (fewshot is not None and own != 0):
        task.set_config(key="num_fewshot", value=fewshot or 0)
    task.set_fewshot_seed(SEED)


def _reason(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return f"{type(error).__name__} {text}" if isinstance(error, KeyError | IndexError | AssertionError) else text


def _scores(found: Any, name: str) -> Iterator[Score]:
    """One for each metric of the task, or of each of its filters."""
    results, samples = found["results"][name], found["samples"].get(name, [])
    for key, value in results.items():
        metric, _, kind = key.partition(",")
        if not kind or metric.endswith("_stderr"):
            continue
        error = results.get(f"{metric}_stderr,{kind}")
        own = [sample for sample in samples if sample["filter"] == kind]
        if metric in PER_WEIGHT:
            error = _ratio_error(metric, value, [sample[metric] for sample in own])
        chosen = found["configs"].get(name, {}).get("output_type") == "multiple_choice" and metric in CHOSEN
        yield Score(
            task=name,
            metric=metric if kind == "none" else f"{metric} ({kind})",
            value=float(value),
            error=float(error) if isinstance(error, int | float) else None,
            chance=math.fsum(map(_chance, own)) / len(own) if chosen and own else None,
            documents=results["sample_len"],
            fewshot=found["n-shot"].get(name),
            higher_is_better=found["higher_is_better"].get(name, {}).get(metric),
        )


def _chance(sample: Any) -> float:
    """Right choices / choices of one document."""
    asked = len(sample["arguments"])
    choices = asked // 2 if "acc_mutual_info" in sample["metrics"] else asked  # which asks without context as well
    right = len(sample["target"]) if isinstance(sample["target"], list) else 1
    return right / choices


def _ratio_error(metric: str, value: float, pairs: list[tuple[float, float]]) -> float | None:
    """Standard error of a function of Σ log-likelihood / Σ weight over documents (delta method; the harness has none).

    The ratio's is √(n/(n−1) Σ(l − ratio·w)²) / Σw (Cochran, Sampling Techniques, 3rd edition, equation 6.13).
    """
    n, weight = len(pairs), math.fsum(w for _, w in pairs)
    if n < 2:
        return None
    ratio = math.fsum(l for l, _ in pairs) / weight  # noqa: E741 (as in the formula)
    error = math.sqrt(n / (n - 1) * math.fsum((l - ratio * w) ** 2 for l, w in pairs)) / weight  # noqa: E741
    slope = PER_WEIGHT[metric]
    return error * (value if slope is None else slope)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Random states as the harness's command sets them; afterwards they are what they were."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            random.seed(0)
            np.random.seed(SEED)
            torch.manual_seed(SEED)
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The harness logs and prints much, and draws bars for what takes no time; on a terminal bars stay."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"  # resampling would fork a process that has threads
    swallowed = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()), swallowed:
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
