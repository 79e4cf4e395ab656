"""A study small enough for tests: seeded text in several documents, tiny models, and spies on what is made."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twofold.data.corpus import Document
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.initialise import initialise
from twofold.models.presets import architecture
from twofold.study.plan import PlannedRun
from twofold.study.runner import run_study
from twofold.study.spec import StudySpec

VARIANTS = ("QKV", "K=V MQA")
CONTEXT, BATCH, STEPS = 37, 3, 11
COMMAND = "twofold study run tiny.yaml"


def documents(count: int = 11, seed: int = 0) -> list[Document]:
    """Texts of different lengths from a small vocabulary, so that there is something to learn."""
    draw = random.Random(seed)
    words = ["def", "return", "self", "import", "os", "(x)", "=", "[1, 2]", "naïve", "\n"]
    return [
        Document(f"part/text_{i}.txt", " ".join(draw.choices(words, k=101 + 13 * i)).encode()) for i in range(count)
    ]


def write_texts(folder: Path, seed: int = 0) -> Path:
    for document in documents(seed=seed):
        path = folder / document.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.content)
    return folder


def content(texts: Path, **changes: Any) -> dict[str, Any]:
    """What a study file holds; `changes` replace whole keys."""
    return {
        "name": "tiny",
        "data": {"source": str(texts), "context": CONTEXT, "held_out": 0.2},
        "model": {"layers": 2, "width": 24, "heads": 4, "mlp": 31},
        "variants": list(VARIANTS),
        "tokens": CONTEXT * BATCH * STEPS,
        "training": {"batch": BATCH},
        "sample": {"prompt": 13, "tokens": 7},
        **changes,
    }


def spec(texts: Path, **changes: Any) -> StudySpec:
    return StudySpec.model_validate(content(texts, **changes))


def tiny_model(variant: str = "QKV", seed: int = 0, **fields: Any) -> TwofoldForCausalLM:
    """A byte model with the initial values of its seed; `fields` are those of `Architecture`."""
    sizes = architecture("tiny", **{"layers": 2, "width": 24, "heads": 4, "mlp": 31, "variant": variant, **fields})
    model = TwofoldForCausalLM(TwofoldConfig.from_architecture(sizes, eos_token_id=256, pad_token_id=256))
    initialise(model, seed)
    return model


class Watched:
    """Notes which runs are made; `at_step` is called with each step of training."""

    def __init__(self, at_step=lambda step: None) -> None:
        self.made: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.trained = at_step

    @contextmanager
    def __call__(self, run: PlannedRun) -> Iterator["Watched"]:
        self.made.append((run.label, run.seed))
        yield self

    def evaluated(self, tokens: int, total: int) -> None:
        assert 0 < tokens <= total

    def say(self, message: str) -> None:
        self.said.append(message)


def make(study: StudySpec, out: Path, at_step=lambda step: None) -> list[tuple[str, int]]:
    """Run what is missing; (label, seed) of each run that was made."""
    watched = Watched(at_step)
    run_study(study, out, COMMAND, watched)
    return watched.made


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of change of every file below a folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}
