"""The control: the unconverted model, trained on the same text in the same way, by the text alone.

A model that is healed has seen more text than its teacher. What that text would have given an unconverted model is no
merit of the healing, and the control says how much it is. It does not depend on the conversion, so that one serves all
conversions of a teacher that are healed with equal settings.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock
from transformers import PreTrainedModel

from twofold.cache.saved import hash_tensor
from twofold.environment import environment
from twofold.healing.measures import measure
from twofold.healing.objective import cross_entropy
from twofold.healing.record import REMEDY, ControlRecord, Measured
from twofold.healing.settings import HealingSettings
from twofold.healing.texts import HealingTexts
from twofold.healing.training import train_on
from twofold.study.execute import Watcher
from twofold.study.record import Environment, read_checked, to_json, write_atomically

RECORD_FILE = "control.json"
KEY_DIGITS = 12
PASSING = ("_name_or_path", "transformers_version", "dtype", "architectures")
"""Fields of a configuration that say where a model was, and nothing of what it computes."""


class Control:
    """A teacher's control for a text and settings, and its folder among others in `controls`.

    The folder's name is a hash of all that the control depends on, and its record says what that is.
    """

    def __init__(
        self, teacher: PreTrainedModel, texts: HealingTexts, settings: HealingSettings, controls: Path
    ) -> None:
        self.teacher, self.texts, self.settings = teacher, texts, settings.for_control()
        self.key = control_settings(teacher, texts, settings)
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()
        self.folder = controls / f"control-{digest[:KEY_DIGITS]}"

    def found(self) -> ControlRecord | None:
        """The record of an earlier one; None where there is none yet. ValueError where it is damaged."""
        path = self.folder / RECORD_FILE
        return read_checked(path, ControlRecord, f"remove it, and {REMEDY}") if path.is_file() else None

    def make(self, before: Measured, watcher: Watcher) -> ControlRecord:
        """Train it, or go on with it, or take the one that another process finished meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "lock"):
            if earlier := self.found():
                return earlier
            model = copy.deepcopy(self.teacher)
            trained = train_on(model, cross_entropy, self.texts, self.settings, self.folder, watcher)
            after = measure(
                model.eval(),
                self.texts.held_out,
                self.texts.tokenizer,
                self.settings.context,
                self.settings.seed,
                watcher.evaluated,
            )
            record = ControlRecord(
                settings=self.key,
                before=before,
                after=after,
                training=trained,
                environment=Environment.model_validate(environment()),
            )
            write_atomically(self.folder / RECORD_FILE, to_json(record))
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        return record


def control_settings(teacher: PreTrainedModel, texts: HealingTexts, settings: HealingSettings) -> dict[str, Any]:
    """All that a control depends on: the teacher's weights, the text, and how it is trained and measured."""
    return {
        "teacher": weights_hash(teacher),
        "text": texts.record.sha256,
        "held_out": texts.record.held_out_sha256,
        "tokenizer": texts.record.tokenizer,
        **settings.of_control(),
    }


def weights_hash(model: PreTrainedModel) -> str:
    """SHA-256 of a model's configuration and weights; where they lie is no part of it."""
    config = {name: value for name, value in model.config.to_diff_dict().items() if name not in PASSING}
    hashed = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        hash_tensor(hashed, name, tensor)
    return hashed.hexdigest()
