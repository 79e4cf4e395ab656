"""Execute one run of a study: train, evaluate, generate, record. The record is written last."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from transformers import PreTrainedModel

from twofold.analysis.costs import measured_parameters
from twofold.data.tokenizer import Tokenizer
from twofold.environment import environment
from twofold.evaluation.attention_entropy import attention_entropy
from twofold.evaluation.generation import Generation, generate
from twofold.evaluation.heldout import evaluate
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.initialise import initialise
from twofold.models.load import MODEL_FOLDER
from twofold.study.data import StudyData
from twofold.study.plan import PlannedRun, of_text
from twofold.study.record import (
    RECORD_FILE,
    SETTINGS_FILE,
    CacheRecord,
    CurvePoint,
    DocumentRecord,
    Environment,
    GradientRecord,
    RunRecord,
    Sample,
    SoftmaxRecord,
    Speed,
    Validation,
    write_atomically,
    write_record,
)
from twofold.study.spec import StudySpec
from twofold.training import checkpoints, processes
from twofold.training.metrics import DivergedError, Step, gradient_size
from twofold.training.run import train

CURVE_POINTS = 200


class Watcher(Protocol):
    """Whoever shows the progress of a run."""

    def trained(self, step: Step) -> None:
        """After every optimizer step."""

    def evaluated(self, tokens: int, total: int) -> None:
        """After every batch of held-out text."""

    def say(self, message: str) -> None:
        """Something that people should know: where the run goes on, or that a checkpoint is damaged."""


def execute(run: PlannedRun, spec: StudySpec, data: StudyData, watcher: Watcher) -> RunRecord | None:
    """Train the run's model and write its folder: metrics.jsonl, model/, and last of all record.json.

    Goes on from a checkpoint where an earlier call with the same settings was interrupted. Raises `DivergedError` for a
    model whose loss is no longer a number.

    Processes that a launcher started train together; what comes after is done by the first alone, and the others get
    None.
    """
    if processes.is_first():
        _claim_folder(run, spec, data)
    model = _new_model(run, data.tokenizer)
    steps = train(
        model,
        data.windows,
        spec.training,
        steps=spec.training.steps(spec.tokens, spec.data.context),
        length=spec.data.context,
        seed=run.seed,
        folder=run.folder,
        progress=watcher.trained,
        resume=True,
        say=watcher.say,
    )
    if not processes.is_first():
        return None
    trained = time.perf_counter()
    evaluation = evaluate(
        model,
        data.held_out,
        spec.data.context,
        progress=watcher.evaluated,
        tokenizer=data.tokenizer,
        packing=spec.data.packing,
    )
    if not math.isfinite(evaluation.perplexity):
        raise DivergedError(f"the trained model's held-out loss is {evaluation.loss}: lower the learning rate")
    prompt, generation = _sample(model, spec, data)
    save_model(model, run.folder / MODEL_FOLDER, data.tokenizer)
    seconds = steps[-1].seconds + time.perf_counter() - trained
    record = RunRecord(
        label=run.label,
        variant=run.variant,
        seed=run.seed,
        parameters=measured_parameters(model),
        validation=Validation(**evaluation.as_dict()),
        documents=tuple(DocumentRecord(**asdict(document)) for document in evaluation.documents),
        cache=cache_record(generation),
        speed=Speed(
            train_tokens_per_second=steps[-1].tokens_per_second,
            decode_tokens_per_second=generation.decode_tokens_per_second,
            wall_seconds=seconds,
        ),
        environment=Environment.model_validate(environment()),
        configuration=_configuration(run, spec, data, model),
        sample=Sample(prompt=data.tokenizer.decode(prompt), text=data.tokenizer.decode(generation.token_ids)),
        curve=thinned(steps),
        softmax=_softmax_record(model, spec, data),
        gradient=_gradient_record(steps),
    )
    write_record(record, run.folder / RECORD_FILE)
    checkpoints.remove(run.folder)
    return record


def cache_record(generation: Generation) -> CacheRecord:
    """What a generation says of its cache."""
    return CacheRecord(
        tokens=generation.cached_tokens,
        bytes_formula=generation.bytes_formula,
        bytes_used=generation.bytes_used,
        bytes_reserved=generation.bytes_reserved,
        bytes_per_token=generation.bytes_used / generation.cached_tokens,
    )


def _softmax_record(model: TwofoldForCausalLM, spec: StudySpec, data: StudyData) -> SoftmaxRecord | None:
    found = attention_entropy(
        model, data.held_out, spec.data.context, packing=spec.data.packing, tokenizer=data.tokenizer
    )
    if found is None:
        return None
    return SoftmaxRecord(**asdict(found.overall), layers=asdict(found)["layers"])


def _gradient_record(steps: list[Step]) -> GradientRecord | None:
    found = gradient_size(steps)
    return found and GradientRecord(**found._asdict())


def _configuration(run: PlannedRun, spec: StudySpec, data: StudyData, model: TwofoldForCausalLM) -> dict[str, Any]:
    """Everything that the run was made with, and what of its sizes is not the study's."""
    contender = of_text(run)
    text = data.record()
    return {
        **spec.comparable(),
        "training": spec.training.model_dump(mode="json"),
        "corpus": text.model_dump(exclude=None if text.tokenizer else {"tokenizer"}),
        "point": dict(run.point),
        "sizes": contender.sizes,
        "changed": {name: list(pair) for name, pair in contender.changed.items()},
        "matched": {name: list(pair) for name, pair in contender.matched.items()},
        "model_config": model.config.to_diff_dict(),
    }


def may_go_on(run: PlannedRun, spec: StudySpec, data: StudyData) -> bool:
    """Whether the run's folder is empty, or holds an interrupted run of the same settings."""
    if not run.folder.is_dir():
        return False
    return not any(run.folder.iterdir()) or (_is_noted(run, spec, data) and not run.finished)


def _claim_folder(run: PlannedRun, spec: StudySpec, data: StudyData) -> None:
    """Make the run's folder its own: what an earlier call with the same settings left stays, anything else goes."""
    if not _is_noted(run, spec, data):
        run.folder.mkdir(parents=True, exist_ok=True)
        checkpoints.remove(run.folder)
        write_atomically(run.folder / SETTINGS_FILE, _settings(run, spec, data))


def _is_noted(run: PlannedRun, spec: StudySpec, data: StudyData) -> bool:
    path = run.folder / SETTINGS_FILE
    return path.is_file() and path.read_bytes() == _settings(run, spec, data)


def _settings(run: PlannedRun, spec: StudySpec, data: StudyData) -> bytes:
    """What a checkpoint must have been made with to be gone on from."""
    text = data.record()
    settings = {**spec.comparable(), "sizes": run.contender.sizes, "seed": run.seed, "text": text.sha256}
    if text.tokenizer:
        settings["tokenizer"] = text.tokenizer
    return json.dumps(settings, indent=2).encode() + b"\n"


def _new_model(run: PlannedRun, tokenizer: Tokenizer) -> TwofoldForCausalLM:
    end = tokenizer.end
    config = TwofoldConfig.from_architecture(
        of_text(run).architecture, bos_token_id=end, eos_token_id=end, pad_token_id=end
    )
    model = TwofoldForCausalLM(config)
    initialise(model, run.seed)
    return model


def save_model(model: PreTrainedModel, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Save model and tokenizer, as Auto classes load them; the new `folder` appears whole or not at all."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        model.save_pretrained(unfinished)
    except SafetensorError as error:  # its way to say that the disk is full
        raise OSError(f"{unfinished}: {error}") from error
    if tokenizer is not None:
        tokenizer.for_transformers().save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def _sample(model: TwofoldForCausalLM, spec: StudySpec, data: StudyData) -> tuple[list[int], Generation]:
    """Continue what `StudyData.prompt` begins."""
    prompt = data.prompt(spec.sample.prompt)
    return prompt, generate(model, prompt, new_tokens=spec.sample.tokens, stop_at_end=False)


def thinned(steps: list[Step]) -> tuple[CurvePoint, ...]:
    """The training loss in at most `CURVE_POINTS` points, each the mean of the steps since the last."""
    every = -(-len(steps) // CURVE_POINTS)
    pieces = [steps[start : start + every] for start in range(0, len(steps), every)]
    return tuple(CurvePoint(tokens=p[-1].tokens, loss=sum(s.loss for s in p) / len(p)) for p in pieces)
