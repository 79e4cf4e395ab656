"""Transformers' Trainer with this package's order of the data, decayed parameters and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.trainer_pt_utils import IterableDatasetShard
from transformers.utils import SAFE_WEIGHTS_NAME

from twofold.attention.position_term import ScoreTerm
from twofold.data.stream_windows import StreamWindows
from twofold.training import checkpoints, processes, sharding

SECONDS_BETWEEN_CHECKPOINTS = 30.0
LARGEST_SHARE = 0.05
Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]
"""From the model and what it would be given to the mean loss of a batch, a scalar with a gradient."""


class SaveOften(TrainerCallback):
    """A checkpoint at least every `SECONDS_BETWEEN_CHECKPOINTS`, so that an interruption never costs much more.

    Of a model so large that checkpoints would take more than `LARGEST_SHARE` of the time, as often as keeps to that.
    Clocks of several processes differ, and all must save together: they keep to the steps that the settings name.
    """

    def __init__(self) -> None:
        self._due = time.monotonic() + SECONDS_BETWEEN_CHECKPOINTS
        self._ended = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for a checkpoint when it is time."""
        self._ended = time.monotonic()
        if processes.count() == 1 and time.monotonic() >= self._due:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count from here; the checkpoint took the time since the step ended."""
        now = time.monotonic()
        self._due = now + max(SECONDS_BETWEEN_CHECKPOINTS, (now - self._ended) / LARGEST_SHARE)


class RunTrainer(Trainer):
    """One run. `sharded`: the model is one that `sharding.shard` has spread over the processes. `loss` is minimised in
    the place of the model's own; it must be a mean over as many tokens in every batch.
    """

    def __init__(self, run_folder: Path, sharded: bool, loss: Loss | None = None, **arguments: Any) -> None:
        self.run_folder = run_folder
        self.sharded = sharded
        self.loss = loss
        super().__init__(**arguments)
        if loss is not None:
            self.model_accepts_loss_kwargs = False  # so the Trainer divides a batch's mean by the batches of a step

    def create_accelerator_and_postprocess(self) -> None:
        """As transformers', but nothing is wrapped around a model that is spread over the processes already."""
        super().create_accelerator_and_postprocess()
        if self.sharded:
            self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **named: Any) -> Any:
        """As transformers', or `loss`, where the run was given one."""
        return super().compute_loss(model, inputs, *args, **named) if self.loss is None else self.loss(model, inputs)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """See `decayed_parameters`."""
        return decayed_parameters(model)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> RandomSampler:
        """All steps' windows in one go: each once before any comes again, in an order that the batch does not change.

        Transformers' own would end each round through the windows with a smaller step. Processes take turns in this
        order, so that a step sees the same windows however many there are.
        """
        return RandomSampler(self.train_dataset, num_samples=self.args.max_steps * self._windows_per_step)

    @property
    def _windows_per_step(self) -> int:
        return self.args.train_batch_size * self.args.world_size * self.args.gradient_accumulation_steps

    def get_train_dataloader(self) -> DataLoader:
        """As transformers', but for a stream one that reads no window before its turn.

        So the stream stands where training does whenever a checkpoint is made. Processes share each batch as they do
        with windows that have an order: the first takes the first part. Each reads the whole stream.
        """
        if not isinstance(self.train_dataset, StreamWindows):
            return super().get_train_dataloader()
        share = IterableDatasetShard(
            self.train_dataset,
            batch_size=self._train_batch_size,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
        )
        # Its own generator: a loader draws a seed for workers when it starts, and it starts again when a run goes on.
        return DataLoader(
            share, batch_size=self._train_batch_size, collate_fn=self.data_collator, generator=torch.Generator()
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except (SafetensorError, RuntimeError) as error:  # their ways to say that the disk is full
            raise OSError(f"cannot write a checkpoint into {self.args.output_dir}: {error}") from error
        processes.wait()  # each has written its random state
        if processes.is_first():
            step = self.state.global_step
            written = Path(self.args.output_dir) / f"checkpoint-{step}"
            if isinstance(self.train_dataset, StreamWindows):
                place = self.train_dataset.state()
                assert place["window"] == step * self._windows_per_step
                checkpoints.note_stream(written, place)
            checkpoints.publish(written, self.run_folder, step)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        super()._save(output_dir, sharding.whole_weights(self.model) if self.sharded else state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        state = sharding.whole_optimizer_state(self.optimizer)
        if processes.is_first():
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not self.sharded:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        sharding.load_whole_weights(self.model, load_file(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.sharded or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        state = torch.load(Path(checkpoint) / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
        sharding.load_whole_optimizer_state(self.optimizer, state)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))


def decayed_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to: matrices, but not embeddings (nor a head tied to them), nor
    the terms on the scores, of which some are matrices in shape alone.
    """
    spared = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    spared |= {id(p) for m in model.modules() if isinstance(m, ScoreTerm) for p in m.parameters()}
    return [name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in spared]
