"""Training on a stream: killed anywhere and started again, it ends as if nothing had happened, bit by bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_documents import Listed
from tiny_study import BATCH, CONTEXT, STEPS, documents, tiny_model
from twofold.data.corpus import Document
from twofold.data.packing import Windows
from twofold.data.stream_windows import StreamWindows
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.training import checkpoints
from twofold.training.metrics import METRICS_FILE
from twofold.training.run import train
from twofold.training.settings import TrainingSettings

TEXTS = [document.content[:211] for document in documents(4)]
"""A step's windows begin and end within a document, and the stream ends within step 8."""
PACKINGS = ("packed", "separate", "padded")


class KilledError(Exception):
    pass


def run(
    folder, packing="separate", *, stop_at=None, accumulation=1, windows=None, resume=True, at_step=None, said=None
):
    """Train a new model in `folder` on the stream, or on `windows`; its weights and metrics, without the times."""
    model = tiny_model("K=V", seed=3, block="paper", dropout=0.2)

    def progress(step):
        if at_step:
            at_step(step)
        if step.step == stop_at:
            raise KilledError

    steps = train(
        model,
        StreamWindows(Listed(TEXTS), CONTEXT, BYTES, packing) if windows is None else windows,
        TrainingSettings(batch=BATCH // accumulation, accumulation=accumulation, checkpoints=STEPS),
        steps=STEPS,
        length=CONTEXT,
        seed=3,
        folder=folder,
        progress=progress,
        resume=resume,
        say=(said if said is not None else []).append,
    )
    return model.state_dict(), [step._replace(seconds=0) for step in steps]


def assert_equal(one, other):
    assert one[1] == other[1]
    assert all(torch.equal(tensor, other[0][name]) for name, tensor in one[0].items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return {packing: run(tmp_path_factory.mktemp(packing), packing) for packing in PACKINGS}


def test_the_stream_ends_within_the_run():
    tokens = sum(len(text) + 1 for text in TEXTS)
    assert 6 * BATCH * CONTEXT < tokens < 8 * BATCH * CONTEXT < STEPS * BATCH * CONTEXT


@pytest.mark.slow
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, STEPS), min_size=1, max_size=3, unique=True).map(sorted), st.sampled_from(PACKINGS))
def test_interrupted_equals_uninterrupted(whole, tmp_path, stops, packing):
    """`stops` are raised before that step's checkpoint is made, so a step is made again."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    for stop in stops:
        with pytest.raises(KilledError):
            run(folder, packing, stop_at=stop)
    assert_equal(run(folder, packing), whole[packing])
    lines = [json.loads(line)["step"] for line in (folder / METRICS_FILE).read_text().splitlines()]
    assert lines == list(range(1, STEPS + 1))


def test_accumulated_steps_go_on_too(tmp_path):
    for stop in (2, 7):
        with pytest.raises(KilledError):
            run(tmp_path / "a", accumulation=3, stop_at=stop)
    assert_equal(run(tmp_path / "a", accumulation=3), run(tmp_path / "b", accumulation=3))


def test_it_trains_on_the_streams_windows_in_their_order(tmp_path):
    """Without dropout, the first losses are those of a plain loop's forward passes."""
    windows = StreamWindows(Listed(TEXTS), CONTEXT, BYTES)
    items = list(islice(windows, BATCH))
    model = tiny_model("K=V", seed=3)
    with torch.no_grad():
        logits = model(torch.stack([item["input_ids"] for item in items])).logits
    labels = torch.stack([item["shift_labels"] for item in items])
    steps = train(
        model,
        windows,
        TrainingSettings(batch=BATCH, checkpoints=0),
        steps=1,
        length=CONTEXT,
        seed=0,
        folder=tmp_path,
    )
    assert steps[0].loss == pytest.approx(torch.nn.functional.cross_entropy(logits.mT, labels).item(), rel=1e-5)


def test_a_second_run_on_the_same_object_starts_at_the_beginning(tmp_path, whole):
    """A study's runs share one."""
    windows = StreamWindows(Listed(TEXTS), CONTEXT, BYTES, "separate")
    for name in ("first", "second"):
        assert_equal(run(tmp_path / name, windows=windows), whole["separate"])


def test_a_damaged_place_is_passed_over_with_its_checkpoint(tmp_path, whole):
    with pytest.raises(KilledError):
        run(tmp_path, stop_at=9)
    newest = tmp_path / checkpoints.FOLDER / "step-8"
    place = json.loads((newest / checkpoints.STREAM).read_text())
    assert place["window"] == 8 * BATCH
    (newest / checkpoints.STREAM).write_text(json.dumps({**place, "offset": place["offset"] + 1}))
    said = []
    assert_equal(run(tmp_path, said=said), whole["separate"])
    assert "step-8 is damaged (stream.json is not what was written)" in said[0]
    assert said[1] == f"goes on after step 7 of {STEPS}"


def test_a_checkpoint_of_a_run_that_was_on_no_stream_is_refused(tmp_path):
    windows = Windows(tokenise([Document("d", text) for text in TEXTS], BYTES), CONTEXT)
    with pytest.raises(KilledError):
        run(tmp_path, windows=windows, stop_at=4)
    with pytest.raises(ValueError, match="step-3 is of a run that was not on a stream: train in another folder"):
        run(tmp_path)


@pytest.mark.parametrize("place", ["stream", "windows"])
def test_flash_attention_is_refused_where_documents_are_kept_apart(tmp_path, place):
    windows = StreamWindows(Listed(TEXTS), CONTEXT, BYTES, "separate")
    if place == "windows":
        windows = Windows(tokenise([Document("d", text) for text in TEXTS], BYTES), CONTEXT, "separate")
    model = tiny_model("K=V")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="packing 'separate' masks documents against each other"):
        train(model, windows, TrainingSettings(), steps=1, length=CONTEXT, seed=0, folder=tmp_path)


@pytest.mark.slow
def test_killed_by_the_system_it_ends_the_same(tmp_path, whole):
    """SIGKILL in the step in which the stream ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, __file__, str(tmp_path)], env=environment, stderr=subprocess.DEVNULL)
    file = tmp_path / METRICS_FILE
    until = time.monotonic() + 120
    while not file.is_file() or file.read_text().count("\n") < 7:
        assert child.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    said = []
    assert_equal(run(tmp_path, said=said), whole["separate"])
    assert said[0].startswith("goes on after step")


if __name__ == "__main__":  # the run that is killed: slow enough to be caught at a step
    from pathlib import Path

    torch.set_num_threads(1)
    run(Path(sys.argv[1]), at_step=lambda step: time.sleep(0.2))
