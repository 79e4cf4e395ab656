"""Progress of long work on standard error: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from twofold.report.formats import duration_text
from twofold.training.metrics import Step

SECONDS_BETWEEN_LINES = 10.0
Stages = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""
# An estimate stands on one of these, counted after the first step, which also pays for what is done once.
STEADY_STEPS, STEADY_SHARE, STEADY_SECONDS = 10, 0.05, 5.0


def quiet_libraries() -> None:
    """Turn off what transformers and its hub print: bars would tear ours apart, and our errors say what warnings do."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # read when datasets is imported, if it ever is


@contextmanager
def running(title: str, *, later: int = 0, quiet: bool = False) -> Iterator[RunProgress]:
    """Shows one run while the block lasts, and how long it took; nothing (`quiet`) where another process does.

    `later` runs of the same study come after it.
    """
    console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    started = time.monotonic()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[figures]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        try:
            yield RunProgress(title, console, bar, later)
        except KeyboardInterrupt:
            console.print(
                f"{title}: the same command goes on from the last checkpoint, if there is one", soft_wrap=True
            )
            raise
    console.print(f"{title}: done in {duration_text(time.monotonic() - started)}", soft_wrap=True)


@contextmanager
def reading(first: str = "reading", of: str = "the text", *, quiet: bool = False) -> Iterator[Stages]:
    """Shows the stages of work of known length, such as what is done to a text before training (`study.texts.Stages`):
    a bar that begins at the `first`, or a line now and then, which says what the work is `of`.
    """
    console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(first, total=None)
        line_due = time.monotonic() + SECONDS_BETWEEN_LINES

        def show(stage: str, done: int, total: int) -> None:
            nonlocal line_due
            bar.update(task, description=stage, completed=done, total=total)
            if not console.is_terminal and time.monotonic() >= line_due:
                line_due = time.monotonic() + SECONDS_BETWEEN_LINES
                console.print(f"{stage} {of}: {done / max(total, 1):.0%}", soft_wrap=True)

        yield show


@contextmanager
def evaluating() -> Iterator[Callable[[int, int], None]]:
    """A bar for an evaluation alone; gives the function to call with (tokens scored, tokens in all)."""
    console = Console(stderr=True, markup=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)
        yield lambda tokens, total: bar.update(task, completed=tokens, total=total)


class RunProgress:
    """The `Watcher` of one run."""

    def __init__(self, title: str, console: Console, bar: Progress, later: int = 0) -> None:
        self.title = title
        self.later = later
        self.console = console
        self.bar = bar
        self._training = bar.add_task(f"{title}: training", total=None, figures="")
        self._evaluating = bar.add_task(f"{title}: evaluating", total=None, figures="", visible=False)
        self._line_due = time.monotonic() + SECONDS_BETWEEN_LINES
        self._first: Step | None = None

    def trained(self, step: Step) -> None:
        """After every optimizer step."""
        figures = f"loss {step.loss:.3f}  {step.tokens_per_second:,.0f} tokens/s{self._estimate(step)}"
        self.bar.update(self._training, completed=step.step, total=step.steps, figures=figures)
        self._line(f"step {step.step:,} of {step.steps:,}, {figures}")

    def _estimate(self, step: Step) -> str:
        """How long this run's training takes yet, and that of all runs; empty until there is something to go by."""
        self._first = self._first or step  # of this process, which may go on from a checkpoint
        steps, seconds = step.step - self._first.step, step.seconds - self._first.seconds
        if not steps or (steps < min(STEADY_STEPS, STEADY_SHARE * step.steps) and seconds < STEADY_SECONDS):
            return ""
        left = (step.steps - step.step) * seconds / steps
        text = f", {duration_text(left)} left"
        if self.later:
            text += f", all runs about {duration_text(left + self.later * step.steps * seconds / steps)}"
        return text

    def evaluated(self, tokens: int, total: int) -> None:
        """After every batch of held-out text."""
        self.bar.update(self._evaluating, completed=tokens, total=total, figures="", visible=True)
        self._line(f"evaluated {tokens:,} of {total:,} tokens")

    def say(self, message: str) -> None:
        """Something that people should know."""
        self.console.print(f"{self.title}: {message}", soft_wrap=True)

    def _line(self, text: str) -> None:
        if self.console.is_terminal or time.monotonic() < self._line_due:
            return
        self._line_due = time.monotonic() + SECONDS_BETWEEN_LINES
        self.console.print(f"{self.title}: {text}", soft_wrap=True)
