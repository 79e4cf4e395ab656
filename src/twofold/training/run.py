"""One training run: transformers' Trainer around a Twofold model."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback

from twofold.data.packing import Windows, check_masks
from twofold.data.stream_windows import StreamWindows
from twofold.environment import device_type
from twofold.training import checkpoints, processes, requirements, sharding
from twofold.training.gradients import GradientWatch
from twofold.training.metrics import METRICS_FILE, MetricsCallback, Step, read_metrics
from twofold.training.settings import TrainingSettings
from twofold.training.trainer import Loss, RunTrainer, SaveOften

log = logging.getLogger(__name__)

TENSORBOARD_FOLDER = "tensorboard"


class _SeedByProcess(TrainerCallback):
    """Draws of processes must differ, or all would drop the same elements. One process keeps the Trainer's seed."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.process_index:
            torch.manual_seed(args.seed + 1_000_003 * args.process_index)


def train(
    model: PreTrainedModel,
    examples: Dataset,
    settings: TrainingSettings,
    *,
    steps: int,
    length: int,
    seed: int,
    folder: Path,
    progress: Callable[[Step], None] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = log.warning,
    callbacks: Sequence[TrainerCallback] = (),
    ended: Callable[[int], bool] = lambda done: False,
    loss: Loss | None = None,
) -> list[Step]:
    """Train `model` in place for so many `steps`; the metrics of every step, also in `folder`/metrics.jsonl.

    With `resume` it goes on from the newest sound checkpoint in `folder`, if there is one, which the same arguments
    must have made: weights and metrics end up as if nothing had interrupted the run, bit by bit on a CPU. `say` is told
    where it goes on, and of damaged checkpoints. Without, checkpoints in `folder` are removed first.
    `examples` are what the model takes as keyword arguments, each of `length` tokens: `Windows` of text, or a set
    whose `__getitems__` gives whole batches. Their order follows from `seed` alone, or is the stream's. `callbacks` are
    the Trainer's; where one of them ends training early, `ended` says so of a checkpoint's step. Seeds the global
    random generators, as transformers' Trainer does. `loss` is what to minimise in the place of the model's own, see
    `trainer.RunTrainer`. Parameters that require no gradient are left as they are.

    Processes that a launcher started share the run: each calls this with equal arguments and ends with the whole model,
    and the first alone writes and tells. Raises `DivergedError` when the loss is no longer a number, and ValueError
    where this machine cannot train as `settings` say.
    """
    processes.join()
    requirements.check(settings)
    if isinstance(examples, Windows | StreamWindows):
        check_masks(examples.packing, model.config._attn_implementation or "")
    place, done, kept = processes.from_first(lambda: _beginning(folder, resume, say))
    if place and processes.is_first():
        say(f"goes on after step {done} of {steps}")
    if place and (done == steps or ended(done)):
        load_model(model, place / "model.safetensors")
        return kept
    if isinstance(examples, StreamWindows):
        examples.resume(checkpoints.stream_state(place) if place else None)
    watch = GradientWatch(model, settings.gradients_every) if settings.gradients_every else None
    metrics = MetricsCallback(
        folder / METRICS_FILE if processes.is_first() else None,
        settings.batch * settings.accumulation * length,
        progress if processes.is_first() else None,
        kept,
        skips=settings.precision == "float16",
        gradients=watch.found if watch else None,
    )
    arguments = _arguments(
        settings, steps, seed, processes.from_first(lambda: checkpoints.unfinished(folder)), folder.name
    )
    arguments.ignore_data_skip = isinstance(examples, StreamWindows)  # it begins at its place already
    with _prepared(model, settings) as trained:
        trainer = RunTrainer(
            run_folder=folder,
            sharded=settings.fsdp,
            loss=loss,
            model=trained,
            args=arguments,
            train_dataset=examples,
            data_collator=_whole if hasattr(examples, "__getitems__") else None,
            callbacks=[
                metrics,
                _SeedByProcess(),
                *([watch] if watch else []),
                *([SaveOften()] if settings.checkpoints else []),
                *callbacks,
            ],
        )
        trainer.remove_callback(PrinterCallback)
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(folder / TENSORBOARD_FOLDER)
        try:
            trainer.train(resume_from_checkpoint=str(place) if place else None)
        finally:
            metrics.close()
            if watch:
                watch.close()
    return metrics.steps


def _whole(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch that is one already."""
    return batch


def _beginning(folder: Path, resume: bool, say: Callable[[str], None]) -> tuple[Path | None, int, list[Step]]:
    """The checkpoint to go on from, its step, and the steps up to it; in a folder that holds no other checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        checkpoints.remove(folder)
    place, done = checkpoints.latest(folder, say) or (None, 0)
    kept = read_metrics(folder, up_to=done)
    if [step.step for step in kept] != list(range(1, done + 1)):
        say(f"{METRICS_FILE} lacks steps before the checkpoint of step {done}: the run starts again")
        checkpoints.remove(folder)
        return None, 0, []
    return place, done, kept


@contextmanager
def _prepared(model: PreTrainedModel, settings: TrainingSettings) -> Iterator[PreTrainedModel]:
    """What to train in the model's place; when the block has ended, `model` has the weights and is as it was.

    Blocks are compiled in place, each by itself: parameters keep their names, one compilation serves all blocks, and
    hooks of processes and checkpointing stay outside.
    """
    trained = model
    caches = getattr(model.config, "use_cache", None)  # the Trainer turns it off for good; an encoder has none
    if settings.fsdp:
        trained = copy.deepcopy(model)
        sharding.shard(trained)
    if settings.compile:
        torch.compiler.reset()  # what other models left would count against the limit of compilations
        for block in trained.model.layers:
            block.compile(options={"fallback_random": True})  # dropout takes the same elements as without
    try:
        yield trained
        if settings.fsdp:
            model.load_state_dict(sharding.whole_weights(trained))
            model.to(trained.device)  # where training leaves one that is not spread
    finally:
        if caches is not None:
            model.config.use_cache = caches
        if settings.gradient_checkpointing:
            trained.activation_checkpointing_disable()
        for block in trained.model.layers:
            block._compiled_call_impl = None  # generation has other shapes at every step
        for left in ("forward", "_original_forward", "_is_accelerate_prepared"):  # accelerate's, around autocast
            trained.__dict__.pop(left, None)


def _arguments(settings: TrainingSettings, steps: int, seed: int, output: Path, name: str) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(output),
        run_name=name,
        max_steps=steps,
        per_device_train_batch_size=settings.batch // processes.count(),
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
        bf16=settings.precision == "bfloat16",
        fp16=settings.precision == "float16",
        activation_checkpointing=settings.gradient_checkpointing,
        use_cpu=device_type() == "cpu",
        ddp_backend=processes.backend(),
        ddp_find_unused_parameters=False,
        report_to=list(settings.report_to),
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["shift_labels", "labels"],
        dataloader_pin_memory=False,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # one process, one device: transformers would spread the batch over all
    return arguments
