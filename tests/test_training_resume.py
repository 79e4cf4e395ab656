"""A run that is interrupted and started again ends as if nothing had happened, bit by bit."""

import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from transformers import TrainerControl

from tiny_study import BATCH, CONTEXT, STEPS, documents, tiny_model
from twofold.data.packing import Windows
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.training import checkpoints
from twofold.training.metrics import METRICS_FILE, MetricsCallback, Step, read_metrics
from twofold.training.run import train
from twofold.training.settings import TrainingSettings
from twofold.training.trainer import LARGEST_SHARE, SECONDS_BETWEEN_CHECKPOINTS, SaveOften

FIELDS = {"block": "paper", "dropout": 0.2}  # dropout: the random state must be restored as well
WINDOWS = Windows(tokenise(documents(), BYTES), CONTEXT)


class KilledError(Exception):
    pass


def run(folder, *, stop_at=None, accumulation=1, said=None, seed=3, resume=True):
    """Train a new model in `folder`, up to `stop_at`; its weights and metrics, without the times."""
    model = tiny_model("K=V", seed=seed, **FIELDS)

    def progress(step):
        if step.step == stop_at:
            raise KilledError

    how = TrainingSettings(batch=BATCH // accumulation, accumulation=accumulation, checkpoints=STEPS // 2)
    say = (said if said is not None else []).append
    steps = train(
        model,
        WINDOWS,
        how,
        steps=STEPS,
        length=CONTEXT,
        seed=seed,
        folder=folder,
        progress=progress,
        resume=resume,
        say=say,
    )
    return model.state_dict(), [step._replace(seconds=0) for step in steps]


def interrupted(folder, *stops, **options):
    for stop in stops:
        with pytest.raises(KilledError):
            run(folder, stop_at=stop, **options)
    return run(folder, **options)


def assert_equal(one, other):
    assert one[1] == other[1]
    assert all(torch.equal(tensor, other[0][name]) for name, tensor in one[0].items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(1, STEPS), min_size=1, max_size=3).map(sorted))
def test_interrupted_equals_uninterrupted(whole, tmp_path, stops):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    reached = [stop for n, stop in enumerate(stops) if stop not in stops[:n]]
    assert_equal(interrupted(folder, *reached), whole)
    lines = [json.loads(line)["step"] for line in (folder / METRICS_FILE).read_text().splitlines()]
    assert lines == list(range(1, STEPS + 1))


def test_accumulated_steps_resume_too(tmp_path):
    assert_equal(interrupted(tmp_path / "a", 6, accumulation=3), run(tmp_path / "b", accumulation=3))


def test_run_goes_on_and_does_not_start_again(tmp_path):
    said = []
    with pytest.raises(KilledError):
        run(tmp_path, stop_at=8)
    run(tmp_path, said=said)
    (place,) = said
    assert place == f"goes on after step 6 of {STEPS}"


def test_without_resume_old_checkpoints_do_not_count(tmp_path):
    with pytest.raises(KilledError):
        run(tmp_path / "a", stop_at=8, seed=4)
    said = []
    assert_equal(run(tmp_path / "a", resume=False, said=said, seed=5), run(tmp_path / "b", seed=5))
    assert said == []


def test_nothing_is_trained_after_the_last_checkpoint(tmp_path, whole):
    run(tmp_path)
    again = run(tmp_path, stop_at=STEPS)  # would stop if the last step were made again
    assert_equal(again, whole)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_taken(tmp_path, whole, damage):
    with pytest.raises(KilledError):
        run(tmp_path, stop_at=9)
    newest = tmp_path / checkpoints.FOLDER / "step-8"
    weights = newest / "model.safetensors"
    content = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(content[:-7])
    elif damage == "flip":
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "remove":
        (newest / "optimizer.pt").unlink()
    else:
        (newest / checkpoints.MANIFEST).write_text("{")
    said = []
    assert_equal(run(tmp_path, said=said), whole)
    assert "step-8 is damaged" in said[0]
    assert said[1] == f"goes on after step 6 of {STEPS}"


def test_all_damaged_means_from_the_start(tmp_path, whole):
    with pytest.raises(KilledError):
        run(tmp_path, stop_at=9)
    for place in (tmp_path / checkpoints.FOLDER).glob("step-*"):
        (place / checkpoints.MANIFEST).unlink()
    said = []
    assert_equal(run(tmp_path, said=said), whole)
    assert len(said) == checkpoints.KEPT


def test_unfinished_checkpoints_do_not_count(tmp_path, whole):
    half = tmp_path / checkpoints.FOLDER / checkpoints.UNFINISHED / "checkpoint-4"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    assert_equal(run(tmp_path), whole)


def test_only_the_newest_are_kept(tmp_path):
    run(tmp_path)
    kept = sorted(place.name for place in (tmp_path / checkpoints.FOLDER).glob("step-*"))
    assert kept == ["step-10", f"step-{STEPS}"]


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    run(tmp_path)
    file = tmp_path / METRICS_FILE
    file.write_text(file.read_text()[:-5])
    assert [step.step for step in read_metrics(tmp_path)] == list(range(1, STEPS))
    assert [step.step for step in read_metrics(tmp_path, up_to=4)] == [1, 2, 3, 4]
    assert read_metrics(tmp_path / "none") == []


def test_time_alone_makes_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("twofold.training.trainer.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr("twofold.training.trainer.LARGEST_SHARE", float("inf"))
    with pytest.raises(KilledError):
        run(tmp_path, stop_at=6)
    said = []
    run(tmp_path, said=said)
    assert said == [f"goes on after step 5 of {STEPS}"]


def test_checkpoints_take_little_of_the_time(monkeypatch):
    """Of a large model, that takes ten seconds to save, they come less often."""
    now, control = [0.0], TrainerControl()
    monkeypatch.setattr("twofold.training.trainer.time.monotonic", lambda: now[0])
    often, wanted = SaveOften(), []
    for _ in range(1000):
        now[0] += 1.0
        control.should_save = False
        often.on_step_end(None, None, control)
        if control.should_save:
            wanted.append(now[0])
            now[0] += 10.0
            often.on_save(None, None, control)
    assert wanted[0] == SECONDS_BETWEEN_CHECKPOINTS
    assert wanted[1:] == [30 + n * (10 + 10 / LARGEST_SHARE) for n in range(1, len(wanted))]
    assert len(wanted) > 3


@pytest.mark.parametrize("error", [SafetensorError("File too large"), RuntimeError("failed writing file")])
def test_a_disk_that_is_full_is_told_as_such(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("transformers.Trainer.save_model", fail)
    with pytest.raises(OSError, match="cannot write a checkpoint into"):
        run(tmp_path)


def test_a_trained_model_caches_as_before(tmp_path):
    model = tiny_model("K=V", **FIELDS)
    how = TrainingSettings(batch=BATCH, checkpoints=0)
    train(model, WINDOWS, how, steps=1, length=CONTEXT, seed=0, folder=tmp_path)
    assert model.config.use_cache
    assert model.eval()(torch.tensor([[1, 2]])).cache is not None


def test_killed_before_its_next_step_it_still_has_the_earlier_ones(tmp_path):
    """The file as another process sees it, with nothing closed or flushed yet."""
    steps = [Step(n, 9, 10 * n, 2.0, 1e-3, 1.0, n / 7) for n in (1, 2, 3)]
    callback = MetricsCallback(tmp_path / METRICS_FILE, 10, None, steps)
    callback.on_train_begin(None, None, None)
    assert read_metrics(tmp_path) == steps
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]
    callback.close()


@pytest.mark.parametrize("left", [0, 3])
def test_where_metrics_are_lost_the_run_starts_again(tmp_path, whole, left):
    with pytest.raises(KilledError):
        run(tmp_path, stop_at=9)
    file = tmp_path / METRICS_FILE
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:left]))
    said = []
    assert_equal(run(tmp_path, said=said), whole)
    assert any("lacks steps" in line for line in said)
