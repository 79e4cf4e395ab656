"""Execute one run on a task: train, score on validation examples, look at the attention, record. The test set waits."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import PreTrainedModel

from twofold.analysis.costs import measured_parameters
from twofold.environment import environment
from twofold.evaluation.attention_maps import AttentionMaps, attention_maps, measures
from twofold.evaluation.generation import generate
from twofold.evaluation.task_score import TaskScore, score_task
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.initialise import initialise
from twofold.models.load import MODEL_FOLDER
from twofold.study.execute import SETTINGS_FILE, Watcher, cache_record, save_model, thinned
from twofold.study.plan import PlannedRun
from twofold.study.record import RECORD_FILE, CacheRecord, Environment, to_json, write_atomically
from twofold.tasks.batches import first
from twofold.tasks.task import Splits
from twofold.training import checkpoints
from twofold.training.run import train
from twofold.training.task_set import LookOften, TaskSet
from twofold.trials.build import build, positions
from twofold.trials.record import TEST_FILE, AttentionMap, Look, Score, TrialRecord
from twofold.trials.trial import TaskContender, Trial

LOOKED_AT = 500
"""Validation examples of a look during training, and of the attention maps' numbers."""
LONGEST_MAP = 64
"""Positions up to which attention maps are kept."""


def execute(run: PlannedRun, trial: Trial, data: Splits, watcher: Watcher) -> TrialRecord:
    """Train the run's model and write its folder: metrics.jsonl, looks.jsonl, model/, and last of all record.json.

    Goes on from a checkpoint where an earlier call with the same settings was interrupted. Raises `DivergedError` for a
    model whose loss is no longer a number.
    """
    _claim_folder(run, trial, data)
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
    )
    trained = time.perf_counter()
    found = _score(model, trial, data, "validation", watcher)
    maps = _maps(model, data)
    save_model(model, run.folder / MODEL_FOLDER)
    examples = trial.training.batch * trial.training.accumulation * steps[-1].step
    record = TrialRecord(
        label=run.label,
        variant=run.variant,
        seed=run.seed,
        parameters=measured_parameters(model),
        validation=found,
        cache=_cache(model, data),
        measures={} if maps is None else measures(maps, trial.task.answer_positions),
        curve=thinned(steps),
        looks=tuple(Look(**one) for one in looking.found),
        examples_per_second=examples / steps[-1].seconds,
        wall_seconds=steps[-1].seconds + time.perf_counter() - trained,
        environment=Environment.model_validate(environment()),
        configuration=_configuration(run, trial, data),
        maps=() if maps is None else _listed(maps),
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
    found = _score(model, trial, data, "test", watcher)
    write_atomically(run.folder / TEST_FILE, to_json(found))
    return found


def _contender(run: PlannedRun) -> TaskContender:
    assert isinstance(run.contender, TaskContender)
    return run.contender


def _score(model: PreTrainedModel, trial: Trial, data: Splits, split: str, watcher: Watcher) -> Score:
    found: TaskScore = score_task(
        model,
        data.form,
        getattr(data, split),
        trial.task.metric,
        data.part_names,
        progress=watcher.evaluated,
    )
    return Score(**asdict(found))


def _look(model: PreTrainedModel, trial: Trial, data: Splits) -> dict[str, Any]:
    found = score_task(model, data.form, first(data.validation, LOOKED_AT), trial.task.metric, data.part_names)
    return {"score": found.score, "parts": found.parts}


def _maps(model: PreTrainedModel, data: Splits) -> AttentionMaps | None:
    """The attention of an encoder with softmax over sequences short enough to be looked at."""
    if data.form.causal or data.form.reads != "tokens" or data.form.padding is not None:
        return None
    if data.form.length > LONGEST_MAP:
        return None
    return attention_maps(model, data.form, first(data.validation, LOOKED_AT))


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


def _configuration(run: PlannedRun, trial: Trial, data: Splits) -> dict[str, Any]:
    """Everything that the run was made with."""
    return {
        **trial.comparable(),
        "point": dict(run.point),
        "sizes": dict(run.contender.sizes),
        "data": data.fingerprint,
    }


def _claim_folder(run: PlannedRun, trial: Trial, data: Splits) -> None:
    """Make the run's folder its own: what an earlier call with the same settings left stays, anything else goes."""
    settings = json.dumps({**_configuration(run, trial, data), "seed": run.seed}, indent=2).encode() + b"\n"
    path = run.folder / SETTINGS_FILE
    if not (path.is_file() and path.read_bytes() == settings):
        run.folder.mkdir(parents=True, exist_ok=True)
        checkpoints.remove(run.folder)
        write_atomically(path, settings)
