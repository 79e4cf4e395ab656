"""One training run: transformers' Trainer around a Twofold model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_model
from torch import nn
from torch.utils.data import Dataset, RandomSampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from twofold.models.decoder import TwofoldForCausalLM
from twofold.training import checkpoints
from twofold.training.metrics import METRICS_FILE, MetricsCallback, Step, read_metrics
from twofold.training.settings import TrainingSettings

log = logging.getLogger(__name__)


class _Trainer(Trainer):
    def __init__(self, run_folder: Path, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.run_folder = run_folder

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        step = self.state.global_step
        checkpoints.publish(Path(self.args.output_dir) / f"checkpoint-{step}", self.run_folder, step)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decayed_parameters(model)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> RandomSampler:
        """All steps' windows in one go: each once before any comes again, in an order that the batch does not change.

        Transformers' own would end each round through the windows with a smaller step.
        """
        per_step = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return RandomSampler(self.train_dataset, num_samples=self.args.max_steps * per_step)


def decayed_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to: matrices, but not embeddings (nor a head tied to them)."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return [name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in embeddings]


def train(
    model: TwofoldForCausalLM,
    windows: Dataset,
    settings: TrainingSettings,
    *,
    tokens: int,
    context: int,
    seed: int,
    folder: Path,
    progress: Callable[[Step], None] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = log.warning,
) -> list[Step]:
    """Train `model` in place on about `tokens` tokens; the metrics of every step, also in `folder`/metrics.jsonl.

    With `resume` it goes on from the newest sound checkpoint in `folder`, if there is one, which the same arguments
    must have made: weights and metrics end up as if nothing had interrupted the run, bit by bit on a CPU. `say` is told
    where it goes on, and of damaged checkpoints. Without, checkpoints in `folder` are removed first.
    `windows` gives `input_ids` and `shift_labels` [context]; their order follows from `seed` alone. Seeds the global
    random generators, as transformers' Trainer does. Raises `DivergedError` when the loss is no longer a number.
    """
    steps = settings.steps(tokens, context)
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        checkpoints.remove(folder)
    found = checkpoints.latest(folder, say)
    place, done = found or (None, 0)
    kept = read_metrics(folder, up_to=done)
    if place:
        say(f"goes on after step {done} of {steps}")
    if place and done == steps:
        load_model(model, place / "model.safetensors")
        return kept
    metrics = MetricsCallback(folder / METRICS_FILE, settings.batch * settings.accumulation * context, progress, kept)
    trainer = _Trainer(
        run_folder=folder,
        model=model,
        args=_arguments(settings, steps, seed, checkpoints.unfinished(folder)),
        train_dataset=windows,
        callbacks=[metrics],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=str(place) if place else None)
    finally:
        metrics.close()
    return metrics.steps


def _arguments(settings: TrainingSettings, steps: int, seed: int, output: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_warmup_with_min_lr",  # unlike `cosine_with_min_lr`, its first step is not at 0
        lr_scheduler_kwargs={"min_lr_rate": settings.minimum},
        warmup_steps=round(settings.warmup * steps),
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        max_grad_norm=settings.clip,
        optim="adamw_torch_fused",
        seed=seed,
        data_seed=seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if settings.checkpoints else "no",
        save_steps=max(1, steps // max(1, settings.checkpoints)),
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["shift_labels"],
        dataloader_pin_memory=False,
    )
