"""Train one model on a healing's text, and follow its held-out loss on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from twofold.evaluation.heldout import evaluate
from twofold.healing.measures import BATCH
from twofold.healing.record import Evaluated, TrainingRecord
from twofold.healing.settings import HealingSettings
from twofold.healing.texts import HealingTexts
from twofold.healing.weights import learning
from twofold.study.execute import Watcher, thinned
from twofold.study.record import write_atomically
from twofold.training.metrics import DivergedError
from twofold.training.run import train
from twofold.training.trainer import Loss

EVALUATIONS_FILE = "evaluations.jsonl"


class Evaluations(TrainerCallback):
    """The loss on the text's sample before the first step, every so many steps, and after the last; a JSON line each.

    In a run that goes on, what the file says of later steps than the checkpoint's is dropped. Raises `DivergedError`
    where the perplexity is no number.
    """

    def __init__(self, path: Path, texts: HealingTexts, settings: HealingSettings, watcher: Watcher) -> None:
        self.path, self.texts, self.settings, self.watcher = path, texts, settings, watcher

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep what was found up to here; at the very beginning there is nothing yet."""
        done = state.global_step * self.settings.tokens_per_step
        kept = [one for one in self.found() if one.tokens <= done] if state.global_step else []
        write_atomically(self.path, "".join(_line(one) for one in kept).encode())
        if not state.global_step:
            self._evaluate(kwargs["model"], 0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Evaluate where it is time."""
        if state.global_step % self.settings.steps_between == 0 or state.global_step == state.max_steps:
            self._evaluate(kwargs["model"], state.global_step * self.settings.tokens_per_step)

    def found(self) -> list[Evaluated]:
        """What the file says, without a line that was cut off."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.is_file() else []
        return [Evaluated.model_validate_json(line) for line in lines if line.endswith("\n")]

    def _evaluate(self, model: PreTrainedModel, tokens: int) -> None:
        started = time.perf_counter()
        found = evaluate(
            model,
            self.texts.sample,
            self.settings.context,
            batch_size=BATCH,
            progress=self.watcher.evaluated,
            tokenizer=self.texts.tokenizer,
        )
        if not math.isfinite(found.perplexity):
            raise DivergedError(
                f"the held-out loss is {found.loss} after {tokens:,} tokens of training: lower the learning rate"
            )
        with self.path.open("a") as file:
            file.write(_line(Evaluated(tokens=tokens, loss=found.loss, seconds=time.perf_counter() - started)))


def train_on(
    model: PreTrainedModel,
    loss: Loss,
    texts: HealingTexts,
    settings: HealingSettings,
    folder: Path,
    watcher: Watcher,
    say: Callable[[str], None] | None = None,
) -> TrainingRecord:
    """Train `model` in place; its `folder` gets metrics, evaluations and checkpoints. Goes on where it was interrupted.

    The same texts and settings give the same windows in the same order, whatever is minimised.
    """
    evaluations = Evaluations(folder / EVALUATIONS_FILE, texts, settings, watcher)
    with learning(model, settings.train, settings.lora, settings.seed) as chosen:
        steps = train(
            model,
            texts.windows,
            settings.training,
            steps=settings.steps,
            length=settings.context,
            seed=settings.seed,
            folder=folder,
            progress=watcher.trained,
            resume=True,
            say=say or watcher.say,
            callbacks=[evaluations],
            loss=loss,
        )
    found = evaluations.found()
    seconds = steps[-1].seconds - sum(one.seconds for one in found)  # the steps' clock runs on meanwhile
    return TrainingRecord(
        trained=chosen.trained,
        parameters=chosen.parameters,
        tokens=steps[-1].tokens,
        steps=len(steps),
        seconds=seconds,
        tokens_per_second=steps[-1].tokens / seconds,
        curve=thinned(steps),
        evaluations=tuple(found),
    )


def _line(one: Evaluated) -> str:
    return one.model_dump_json() + "\n"
