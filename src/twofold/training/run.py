"""One training run: transformers' Trainer around a Twofold model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import nn
from torch.utils.data import Dataset, RandomSampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from twofold.models.decoder import TwofoldForCausalLM
from twofold.training.metrics import MetricsCallback, Step
from twofold.training.settings import TrainingSettings

METRICS_FILE = "metrics.jsonl"


class _Trainer(Trainer):
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
) -> list[Step]:
    """Train `model` in place on about `tokens` tokens; the metrics of every step, also in `folder`/metrics.jsonl.

    `windows` gives `input_ids` and `shift_labels` [context]; their order follows from `seed` alone. Seeds the global
    random generators, as transformers' Trainer does. Raises ValueError when the loss is no longer a number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = MetricsCallback(folder / METRICS_FILE, settings.batch * settings.accumulation * context, progress)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = _Trainer(
            model=model,
            args=_arguments(settings, settings.steps(tokens, context), seed, scratch),
            train_dataset=windows,
            callbacks=[metrics],
        )
        trainer.remove_callback(PrinterCallback)
        try:
            trainer.train()
        finally:
            metrics.close()
    return metrics.steps


def _arguments(settings: TrainingSettings, steps: int, seed: int, scratch: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=scratch,
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
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["shift_labels"],
        dataloader_pin_memory=False,
    )


def read_metrics(folder: Path) -> list[Step]:
    """The steps that `train` wrote into `folder`."""
    return [Step(**json.loads(line)) for line in (folder / METRICS_FILE).read_text().splitlines()]
