"""Two processes train one model as one process would: the same batch, the same steps, whole checkpoints, one writer."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import distributed_training
from distributed_training import CASES, SAVED, STEPS, interrupt
from tiny_study import CONTEXT, files, make, spec
from twofold.training import checkpoints
from twofold.training.metrics import METRICS_FILE, Step, read_metrics
from twofold.training.settings import TrainingSettings

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
IN_FLOAT32 = ("ddp", "ddp_tied", "ddp_stream", "fsdp", "fsdp_tied")
GOES_ON = ("ddp-resumed", "ddp_stream-resumed", "fsdp_tied-resumed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each case in one process: weights, steps and folder."""
    made = {}
    for name in CASES:
        folder = tmp_path_factory.mktemp(name)
        weights, steps, _ = distributed_training.run(name, folder, fsdp=False)
        made[name] = (weights, steps, folder)
    return made


@pytest.fixture(scope="module")
def together(alone, texts, tmp_path_factory):
    """The folder where two processes made each case, went on from checkpoints of one, and diverged."""
    out = tmp_path_factory.mktemp("together")
    for name in GOES_ON:
        folder = alone[name.partition("-")[0]][2]
        (out / name).symlink_to(folder)
        interrupt(folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    names = (*CASES, *GOES_ON, "ddp_dropout-again", "ddp-poisoned")
    words = [*TWO, distributed_training.__file__, str(out), str(texts), *names]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (out / "standard_error").write_text(done.stderr)
    return out


def read(out, name, second=False):
    weights, steps, said, _ = torch.load(out / f"{name}.{'second' if second else 'pt'}")
    return weights, [Step(*step) for step in steps], said


def assert_close(one, other, tolerance=2e-6):
    """Equal weights and steps but for rounding; a learning rate of 1e-2 moves weights by 6e-2 in all."""
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        torch.testing.assert_close(other[0][name], value, rtol=0, atol=tolerance)
    for step, same in zip(one[1], other[1], strict=True):
        assert (step.step, step.steps, step.tokens, step.learning_rate) == (
            same.step,
            same.steps,
            same.tokens,
            same.learning_rate,
        )
        assert same.loss == pytest.approx(step.loss, rel=1e-6)
        assert same.gradient_norm == pytest.approx(step.gradient_norm, rel=1e-5)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_two_processes_equal_one(alone, together, name):
    assert_close(alone[name], read(together, name))
    assert_close(read(together, name), read(together, name, second=True), tolerance=0)


def test_two_processes_in_bfloat16_equal_one_as_far_as_it_goes(alone, together):
    (_, steps, _), (_, same, _) = alone["fsdp_bfloat16"], read(together, "fsdp_bfloat16")
    assert [step.loss for step in same] == pytest.approx([step.loss for step in steps], rel=1e-3)
    assert same[0].loss != steps[0].loss or same[-1].loss != steps[-1].loss


@pytest.mark.parametrize("name", GOES_ON)
def test_two_processes_go_on_from_a_checkpoint_of_one(alone, together, name):
    went_on = read(together, name)
    assert went_on[2] == [f"goes on after step {SAVED} of {STEPS}"]
    assert_close(alone[name.partition("-")[0]], went_on)


def test_two_processes_go_on_from_their_own_checkpoint_bit_by_bit(together):
    weights, steps, _ = read(together, "ddp_dropout")
    again, retaken, said = read(together, "ddp_dropout-again")
    assert said == [f"goes on after step {SAVED} of {STEPS}"]
    assert [step._replace(seconds=0) for step in retaken] == [step._replace(seconds=0) for step in steps]
    assert all(torch.equal(tensor, again[name]) for name, tensor in weights.items())


def test_dropout_of_two_processes_differs(together):
    drawn = [torch.load(together / f"ddp_dropout.{end}")[3] for end in ("pt", "second")]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("name", ["ddp_tied", "ddp_stream", "fsdp"])
def test_one_process_goes_on_from_a_checkpoint_of_two(alone, together, name):
    interrupt(together / name)
    weights, steps, said = distributed_training.run(name, together / name, fsdp=False)
    assert said == [f"goes on after step {SAVED} of {STEPS}"]
    assert_close(alone[name], (weights, steps))


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_each_step_is_written_once_and_counts_the_tokens_of_all(together, name):
    settings = TrainingSettings(batch=4, **CASES[name][2])
    lines = [json.loads(line) for line in (together / name / METRICS_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[-1]["tokens"] == STEPS * 4 * settings.accumulation * CONTEXT


@pytest.mark.parametrize("name", ["ddp", "ddp_stream", "fsdp_tied"])
def test_checkpoints_of_two_are_those_of_one(alone, together, name):
    one, two = (folder / checkpoints.FOLDER / f"step-{SAVED}" for folder in (alone[name][2], together / name))
    noted = set(json.loads((two / checkpoints.MANIFEST).read_text()))
    assert noted - {"rng_state_0.pth", "rng_state_1.pth"} == set(files(one)) - {"rng_state.pth", checkpoints.MANIFEST}
    assert set(files(two)) == noted | {checkpoints.MANIFEST}
    weights, same = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert weights.keys() == same.keys()
    state, equal = torch.load(one / "optimizer.pt"), torch.load(two / "optimizer.pt")
    assert state["param_groups"][0].keys() == equal["param_groups"][0].keys()
    pairs = [(tensor, same[key]) for key, tensor in weights.items()]
    pairs += [
        (value, equal["state"][number][key]) for number, of in state["state"].items() for key, value in of.items()
    ]
    for tensor, other in pairs:
        torch.testing.assert_close(other, tensor, rtol=1e-3, atol=2e-6)


def test_the_folder_of_unfinished_checkpoints_is_left_empty(together):
    assert not [place for place in together.glob("*/checkpoints/unfinished/*") if "poisoned" not in str(place)]


def test_a_loss_that_is_no_number_stops_both(together):
    for end in ("pt", "second"):
        assert "the loss is nan at step 1" in torch.load(together / f"ddp-poisoned.{end}")
    assert read_metrics(together / "ddp-poisoned") == []


def test_the_command_trains_over_processes_and_records_once(together, texts, tmp_path):
    told = json.loads(torch.load(together / "command.pt"))
    assert torch.load(together / "command.second") == ""
    one = json.loads(distributed_training.called(distributed_training.command(texts, tmp_path / "one")))
    assert told["environment"]["processes"] == 2
    assert one["environment"]["processes"] == 1
    assert told["configuration"]["training"]["fsdp"] is True
    assert told["validation"] == pytest.approx(one["validation"], rel=1e-5)
    assert told["cache"] == one["cache"]
    assert set(files(together / "command")) == set(files(tmp_path / "one"))
    assert (together / "standard_error").read_text().count("K=V MQA, seed 0: done in") == 1


@pytest.fixture
def second_of_two(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")


@pytest.mark.usefixtures("second_of_two")
def test_a_study_over_processes_is_refused_before_anything_is_written(texts, tmp_path):
    with pytest.raises(ValueError, match="a study is not launched over processes, and here are 2: start it once per"):
        make(spec(texts), tmp_path / "out")
    assert not (tmp_path / "out").exists()
