"""Execute one run on a task: train, score on validation examples, look at the attention, record. The test set waits."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import PreTrainedModel

from twofold.analysis.costs import measured_parameters
from twofold.environment import device_type, environment
from twofold.evaluation.attention_maps import AttentionMaps, attention_maps, measures
from twofold.evaluation.generation import generate
from twofold.evaluation.task_score import TaskScore, score_task
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.initialise import initialise
from twofold.models.load import MODEL_FOLDER
from twofold.study.execute import Watcher, cache_record, save_model, thinned
from twofold.study.plan import PlannedRun
from twofold.study.record import RECORD_FILE, SETTINGS_FILE, CacheRecord, Environment, to_json, write_atomically
from twofold.tasks.batches import some
from twofold.tasks.task import Splits
from twofold.training import checkpoints
from twofold.training.metrics import DivergedError
from twofold.training.run import train
from twofold.training.task_set import LOOKS_FILE, LookOften, TaskSet, read_looks
from twofold.trials.build import build, positions
from twofold.trials.plan import settings_of
from twofold.trials.record import TEST_FILE, AttentionMap, Look, Score, TrialRecord
from twofold.trials.trial import TaskContender, Trial

LOOKED_AT = 500
"""Validation examples of a look during training, and of the attention maps' numbers."""
LONGEST_MAP = 64
"""Positions up to which attention maps are kept; their numbers are taken of longer ones too."""


def execute(run: PlannedRun, trial: Trial, data: Splits, watcher: Watcher) -> TrialRecord:
    """Train the run's model and write its folder: metrics.jsonl, looks.jsonl, model/, and last of all record.json.

    Goes on from a checkpoint where an earlier call with the same settings was interrupted. Raises `DivergedError` for a
    model whose loss is no longer a number.
    """
    _claim_folder(run, trial, data)
    (run.folder / TEST_FILE).unlink(missing_ok=True)  # of a model whose record is gone
    contender = _contender(run)
    model = build(contender, data.form)
    initialise(model, run.seed)
    looking = LookOften(run.folder, trial.looks, lambda now: _look(now, trial, data), trial.until)
    steps = train(
        model,
        TaskSet(data, run.seed),
        trial.training,
        steps=trial.steps,
        length=positions(contender, data.form),
        seed=run.seed,
        folder=run.folder,
        progress=watcher.trained,
        resume=True,
        say=watcher.say,
        callbacks=[looking],
        ended=looking.ended,
    )
    trained = time.perf_counter()
    found = _score(model, trial, data, "validation", watcher)
    if not math.isfinite(found.loss):
        raise DivergedError(f"the trained model's loss on validation examples is {found.loss}: lower the learning rate")
    maps = _maps(model, data)
    save_model(model, run.folder / MODEL_FOLDER)
    examples = trial.training.batch * trial.training.accumulation * steps[-1].step
    record = TrialRecord(
        label=run.label,
        variant=run.variant,
        seed=run.seed,
        parameters=measured_parameters(model),
        validation=Score(**asdict(found)),
        cache=_cache(model, data),
        measures={} if maps is None else measures(maps, trial.task.answer_positions),
        curve=thinned(steps),
        looks=tuple(Look(**one) for one in read_looks(run.folder / LOOKS_FILE)),
        examples_per_second=examples / steps[-1].seconds,
        wall_seconds=steps[-1].seconds + time.perf_counter() - trained,
        environment=Environment.model_validate(environment()),
        configuration=settings_of(run, trial) | {"data": data.fingerprint},
        maps=_listed(maps) if maps is not None and data.form.length <= LONGEST_MAP else (),
    )
    write_atomically(run.folder / RECORD_FILE, to_json(record))
    checkpoints.remove(run.folder)
    return record


def execute_test(run: PlannedRun, trial: Trial, data: Splits, watcher: Watcher) -> Score:
    """Score a finished run on the test set, which no other run of the variant's sweep reads; write test.json."""
    model = build(_contender(run), data.form)
    try:
        load_model(model, run.folder / MODEL_FOLDER / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{run.folder}: its model cannot be read ({error}): delete the folder and run again"
        ) from error
    found = Score(**asdict(_score(model.to(device_type()), trial, data, "test", watcher)))
    write_atomically(run.folder / TEST_FILE, to_json(found))
    return found


def _contender(run: PlannedRun) -> TaskContender:
    assert isinstance(run.contender, TaskContender)
    return run.contender


def _score(model: PreTrainedModel, trial: Trial, data: Splits, split: str, watcher: Watcher) -> TaskScore:
    return score_task(
        model,
        data.form,
        getattr(data, split),
        trial.task.metric,
        data.part_names,
        progress=watcher.evaluated,
    )


def _look(model: PreTrainedModel, trial: Trial, data: Splits) -> dict[str, Any]:
    found = score_task(model, data.form, some(data.validation, LOOKED_AT), trial.task.metric, data.part_names)
    return {"score": found.score, "parts": found.parts}


def _maps(model: PreTrainedModel, data: Splits) -> AttentionMaps | None:
    """The attention of an encoder over sequences of one length."""
    if data.form.causal or data.form.reads != "tokens" or data.form.padding is not None:
        return None
    return attention_maps(model, data.form, some(data.validation, LOOKED_AT))


def _listed(maps: AttentionMaps) -> tuple[AttentionMap, ...]:
    found = []
    for layer, head in np.ndindex(maps.symmetry.shape):
        weights = tuple(tuple(round(float(w), 4) for w in row) for row in maps.mean[layer, head])
        found.append(AttentionMap(layer=layer, head=head, weights=weights))
    return tuple(found)


def _cache(model: PreTrainedModel, data: Splits) -> CacheRecord | None:
    """A real cache after an example of the task, but for its last token; None for an encoder, which keeps nothing."""
    if not isinstance(model, TwofoldForCausalLM):
        return None
    prompt = data.validation.inputs[0, :-1].tolist()
    return cache_record(generate(model, prompt, new_tokens=2, temperature=0, stop_at_end=False))


def _claim_folder(run: PlannedRun, trial: Trial, data: Splits) -> None:
    """Make the run's folder its own: what an earlier call with the same settings left stays, anything else goes."""
    settings = json.dumps(settings_of(run, trial) | {"data": data.fingerprint}, indent=2).encode() + b"\n"
    path = run.folder / SETTINGS_FILE
    if not (path.is_file() and path.read_bytes() == settings):
        run.folder.mkdir(parents=True, exist_ok=True)
        checkpoints.remove(run.folder)
        write_atomically(path, settings)
