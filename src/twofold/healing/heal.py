"""Heal a converted model: distil its teacher into it, and say what that was worth beside a control."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from twofold.environment import environment, package_version
from twofold.healing.control import Control, weights_hash
from twofold.healing.measures import measure, most_positions
from twofold.healing.objective import Distillation, require_equal_layers
from twofold.healing.record import (
    RECORD_FILE,
    ControlRecord,
    HealRecord,
    Measured,
    TrainingRecord,
    ratios,
    write_heal_record,
)
from twofold.healing.settings import OF_THE_CONTROL, HealingSettings
from twofold.healing.texts import HealingTexts
from twofold.healing.training import train_on
from twofold.healing.weights import require_peft
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.load import MODEL_FOLDER
from twofold.study.execute import Watcher, save_model
from twofold.study.record import SETTINGS_FILE, Environment, write_atomically
from twofold.training import checkpoints, processes
from twofold.training.metrics import DivergedError

CONTROLS = "controls"
MEASURED_FILE = "measured.json"
Watching = Callable[[str], AbstractContextManager[Watcher]]
"""From what is done to a block in which its progress is shown."""


@dataclass(frozen=True)
class Healing:
    """What is healed, by whom, on what, and where the results go. `controls` is the folder that controls share.

    The `model` is changed in place. Names and `command` stand in the record.
    """

    model: TwofoldForCausalLM
    teacher: PreTrainedModel
    texts: HealingTexts
    settings: HealingSettings
    out: Path
    controls: Path
    model_name: str = ""
    teacher_name: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a teacher of other tokens, of too few positions, of other layers where these are
        compared or one that makes no control; for missing packages, and for several processes.
        """
        own, taught = self.model.config.vocab_size, self.teacher.config.vocab_size
        if own != taught:
            raise ValueError(
                f"the model has {own:,} tokens and the teacher {taught:,}: a teacher's next token can be learnt where "
                "both have the same vocabulary"
            )
        if self.texts.tokenizer.vocabulary > own:
            raise ValueError(
                f"the tokenizer has {self.texts.tokenizer.vocabulary:,} tokens and the model {own:,}: they do not "
                "belong together"
            )
        if self.settings.control and not hasattr(getattr(self.teacher, "model", None), "layers"):
            raise ValueError(
                f"a {self.teacher.config.model_type!r} teacher cannot be trained here, only teach: give --no-control"
            )
        for name, model in (("model", self.model), ("teacher", self.teacher)):
            if self.settings.context > (most := most_positions(model)):
                raise ValueError(
                    f"the {name} has {most:,} positions, too few for windows of {self.settings.context:,} tokens: give "
                    f"--context {most} or less"
                )
        for text in (self.model_name, self.teacher_name, self.command, str(self.out), *self.texts.record.sources):
            if not _is_unicode(text):
                raise ValueError(f"{text!r} has bytes that are no UTF-8, which the record cannot hold: rename it")
        if self.settings.layer_loss:
            require_equal_layers(self.model, self.teacher)
        if self.settings.lora:
            require_peft()
        if self.settings.control and self.controls.exists() and not self.controls.is_dir():
            raise ValueError(f"{self.controls} is no folder, which controls are kept in: give another --controls")
        if processes.count() > 1:
            raise ValueError(f"healing takes one process, and there are {processes.count()}: start it without torchrun")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # of a name on disk, read with surrogates for bytes
        return False
    return True


def heal(job: Healing, watching: Watching) -> HealRecord:
    """Train, measure and write the folder `out`: model/, metrics.jsonl, evaluations.jsonl, and last of all heal.json.

    Goes on where an earlier call with equal models, text and settings was interrupted, and then ends with the same
    weights, on a CPU bit by bit; only what is asked of the control may differ. Raises ValueError where `out` holds
    anything else, and `DivergedError` where a loss is no number.
    """
    _claim(job)
    control = Control(job.teacher, job.texts, job.settings, job.controls) if job.settings.control else None
    earlier = control.found() if control else None
    if control:
        control.folder.mkdir(parents=True, exist_ok=True)  # now, and not when the healing is done
    with watching("healing") as watcher:
        before = earlier.before if earlier else _measured(job, "teacher", job.teacher, watcher)
        converted = _measured(job, "converted", job.model, watcher)
        loss = Distillation(
            job.teacher,
            temperature=job.settings.temperature,
            layer_loss=job.settings.layer_loss,
            cross_entropy=job.settings.cross_entropy,
        )
        trained = train_on(job.model, loss, job.texts, job.settings, job.out, watcher)
        healed = _measured(job, "healed", job.model.eval(), watcher)
        save_model(job.model, job.out / MODEL_FOLDER, job.texts.tokenizer)
    found = earlier
    if control and not earlier:
        with watching("control") as watcher:
            found = control.make(before, watcher)
    record = _record(job, before, converted, healed, trained, found, earlier is not None)
    write_heal_record(record, job.out)
    checkpoints.remove(job.out)
    (job.out / MEASURED_FILE).unlink(missing_ok=True)
    return record


def _record(
    job: Healing,
    before: Measured,
    converted: Measured,
    healed: Measured,
    trained: TrainingRecord,
    control: ControlRecord | None,
    was_there: bool,
) -> HealRecord:
    return HealRecord(
        model=job.model_name,
        teacher=job.teacher_name,
        command=job.command,
        settings=job.settings.model_dump(mode="json"),
        text=job.texts.record,
        before=before,
        converted=converted,
        healed=healed,
        training=trained,
        control=control,
        control_was_there=was_there,
        ratios=ratios(before, converted, healed, control.after if control else None),
        environment=Environment.model_validate(environment()),
        packages={"peft": package_version("peft") if job.settings.lora else None},
        model_config_of_healed=job.model.config.to_diff_dict(),
    )


def may_go_on(out: Path) -> bool:
    """Whether the folder is new, empty, or holds a healing that was interrupted (of whatever settings)."""
    if not out.exists():
        return True
    return out.is_dir() and (not any(out.iterdir()) or ((out / SETTINGS_FILE).is_file() and not _finished(out)))


def _finished(out: Path) -> bool:
    return (out / RECORD_FILE).is_file()


def _claim(job: Healing) -> None:
    """Make `out` this healing's own, or find that it is."""
    settings = {
        "model": weights_hash(job.model),
        "teacher": weights_hash(job.teacher),
        "text": job.texts.record.sha256,
        "held_out": job.texts.record.held_out_sha256,
        "tokenizer": job.texts.record.tokenizer,
        **job.settings.comparable(),
    }
    path = job.out / SETTINGS_FILE
    if not may_go_on(job.out) or (path.is_file() and not _goes_with(path, settings)):
        raise ValueError(
            f"{job.out} exists, and is no interrupted healing of this model with these settings: choose another folder "
            "with --out, or remove it"
        )
    job.out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(settings, indent=2).encode() + b"\n")


def _goes_with(path: Path, settings: dict[str, Any]) -> bool:
    """Whether what is noted there are these settings, but for those of the control."""
    try:
        noted = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(noted, dict) and noted | {name: settings[name] for name in OF_THE_CONTROL} == settings


def _measured(job: Healing, name: str, model: PreTrainedModel, watcher: Watcher) -> Measured:
    """What `measure` finds, once: an interrupted healing keeps it."""
    path = job.out / MEASURED_FILE
    known = json.loads(path.read_bytes()) if path.is_file() else {}
    if name not in known:
        try:
            found = measure(
                model,
                job.texts.held_out,
                job.texts.tokenizer,
                job.settings.context,
                job.settings.seed,
                watcher.evaluated,
            )
        except DivergedError as error:
            raise DivergedError(f"the {name} model: {error}") from error
        known[name] = found.model_dump(mode="json")
        write_atomically(path, json.dumps(known).encode())
    return Measured.model_validate(known[name])
