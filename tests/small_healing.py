"""A small teacher, a model that lost something of it, and a text: what tests of healing share."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from small_checkpoints import checkpoint
from tiny_study import write_texts
from twofold.conversion.convert import convert_in
from twofold.data.byte_tokens import VOCABULARY
from twofold.data.tokenizer import BYTES
from twofold.healing.heal import CONTROLS, Healing
from twofold.healing.settings import HealingSettings
from twofold.healing.texts import HealingTexts
from twofold.models.decoder import TwofoldForCausalLM
from twofold.training.settings import TrainingSettings

CONTEXT, BATCH, STEPS = 23, 3, 7
HOW = TrainingSettings(batch=BATCH, learning_rate=3e-3, weight_decay=0.0, checkpoints=STEPS)


def settings(**others) -> HealingSettings:
    fields = {"tokens": STEPS * BATCH * CONTEXT, "context": CONTEXT, "sample": 311, "training": HOW}
    return HealingSettings(**{**fields, **others})


@cache
def _original():
    """A Llama over bytes whose next token is no foregone conclusion: smaller values than the checkpoints have."""
    model = checkpoint("llama", vocab_size=VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return model


def original():
    """The teacher as transformers has it; read only."""
    return _original()


def teacher() -> TwofoldForCausalLM:
    return convert_in(_original())


def student(deviation: float = 0.3, seed: int = 1) -> TwofoldForCausalLM:
    """The teacher with noise on its projections."""
    model = teacher()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "projections" in name:
                parameter.add_(deviation * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return model


def healing_texts(folder: Path, chosen: HealingSettings | None = None) -> HealingTexts:
    source = folder / "texts"
    if not source.exists():
        write_texts(source)
    return HealingTexts.read([str(source)], "0.2", BYTES, chosen or settings())


def job(folder: Path, out: str = "healed", model: TwofoldForCausalLM | None = None, **others) -> Healing:
    chosen = settings(**others)
    return Healing(
        student() if model is None else model,
        teacher(),
        healing_texts(folder, chosen),
        chosen,
        folder / out,
        folder / CONTROLS,
    )


class KilledError(Exception):
    pass


class Silent:
    """A watcher that notes what it is told, and ends the run after a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.steps, self.said = stop_at, [], []

    def trained(self, step) -> None:
        self.steps.append(step)
        if step.step == self.stop_at:
            raise KilledError

    def evaluated(self, tokens: int, total: int) -> None:
        pass

    def say(self, message: str) -> None:
        self.said.append(message)


def watching(**stops: int):
    """For `heal`: stops after a step, by what is done (`healing`, `control`). `watchers` are those that were made."""
    watchers: dict[str, Silent] = {}

    @contextmanager
    def watch(title: str):
        watchers[title] = Silent(stops.get(title))
        yield watchers[title]

    watch.watchers = watchers
    return watch
