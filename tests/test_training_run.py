"""One training run: the optimizer's groups, the schedule, the order of the data, what is written and what stops it."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.utils.data import Dataset

from tiny_study import CONTEXT, documents, tiny_model
from twofold.data.corpus import Document
from twofold.data.packing import Windows
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.training.metrics import read_metrics
from twofold.training.run import train
from twofold.training.settings import TrainingSettings

WINDOWS = 11
LEARNING_RATE = 3e-3


class Recorded(Dataset):
    """The first `WINDOWS` windows of the text, and the order in which they were asked for."""

    def __init__(self) -> None:
        self.windows = Windows(tokenise(documents(), BYTES), CONTEXT)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return WINDOWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.asked.append(index)
        return self.windows[index]


def run(folder, model=None, windows=None, *, steps=5, seed=0, progress=None, **settings):
    """Train for `steps` steps; the model and its steps."""
    model = tiny_model() if model is None else model
    chosen = TrainingSettings(**{"batch": 2, "learning_rate": LEARNING_RATE, **settings})
    taken = train(
        model,
        Recorded() if windows is None else windows,
        chosen,
        steps=steps,
        length=CONTEXT,
        seed=seed,
        folder=folder,
        progress=progress,
    )
    return model, taken


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def in_double(**fields):
    """Deviations stand out of rounding, and nothing is at its neutral value, not even a bias."""
    model = tiny_model(**fields).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("block", "tied"), [("paper", True), ("modern", False)])
def test_only_matrices_are_decayed(tmp_path, block, tied):
    torch.manual_seed(0)
    before = weights(model := in_double(block=block, tied=tied))
    after = {}
    for decay in (0.0, 0.5):
        model.load_state_dict(before, strict=False)
        run(tmp_path, model, steps=1, minimum=1, weight_decay=decay)
        after[decay] = weights(model)
    decayed = set()
    for name, start in before.items():
        difference = after[0.5][name] - after[0.0][name]
        assert start.abs().min() > 0
        if difference.any():
            decayed.add(name)
            torch.testing.assert_close(difference, -LEARNING_RATE * 0.5 * start, rtol=1e-6, atol=1e-12)
    matrices = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert decayed == matrices - ({"lm_head.weight"} if tied else set())
    assert any(name.endswith("bias") for name in before) == (block == "paper")


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.05), (7, 0.0), (13, 0.3), (20, 0.05)])
def test_learning_rate_rises_to_the_peak_and_falls_to_the_minimum(tmp_path, steps, warmup):
    _, taken = run(tmp_path, steps=steps, warmup=warmup, minimum=0.2)
    rising = round(warmup * steps)

    def share(step):
        if step <= rising:
            return step / rising
        return 0.2 + 0.8 * (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2

    expected = [LEARNING_RATE * share(step) for step in range(1, steps + 1)]
    assert [step.learning_rate for step in taken] == pytest.approx(expected)
    assert taken[-1].learning_rate == pytest.approx(0.2 * LEARNING_RATE)


def test_accumulation_equals_the_larger_batch(tmp_path):
    torch.manual_seed(0)
    start = weights(model := in_double())
    ended, metrics, orders = [], [], []
    for batch, accumulation in ((6, 1), (2, 3), (1, 6)):
        model.load_state_dict(start, strict=False)
        windows = Recorded()
        _, taken = run(tmp_path, model, windows, steps=7, batch=batch, accumulation=accumulation)
        ended.append(weights(model))
        orders.append(windows.asked)
        metrics.append([(step.tokens, step.loss, step.gradient_norm) for step in taken])
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == 7 * 6  # more than three times round 11 windows, and no step came out smaller
    for other in (1, 2):
        assert metrics[other] == [pytest.approx(step, rel=1e-5) for step in metrics[0]]
        for name, value in ended[0].items():
            torch.testing.assert_close(ended[other][name], value, rtol=0, atol=1e-5)


def test_gradients_are_clipped_to_the_norm(tmp_path):
    # Far below AdamW's epsilon of 1e-8 an element's first step is learning rate × gradient / epsilon.
    torch.manual_seed(0)
    before = weights(model := in_double())
    _, (step,) = run(tmp_path, model, steps=1, minimum=1, weight_decay=0, clip=1e-11)
    moved = math.sqrt(sum(((value - before[name]) ** 2).sum().item() for name, value in weights(model).items()))
    assert moved == pytest.approx(LEARNING_RATE * 1e-11 / 1e-8, rel=1e-2)
    assert step.gradient_norm > 0.01  # told as it was before clipping


def test_same_seed_same_bits(tmp_path):
    first, taken = run(tmp_path / "a", tiny_model(dropout=0.1), steps=6)
    torch.manual_seed(123)  # whatever went before does not matter
    again, retaken = run(tmp_path / "b", tiny_model(dropout=0.1), steps=6)
    other, _ = run(tmp_path / "c", tiny_model(dropout=0.1), steps=6, seed=1)
    assert [step._replace(seconds=0) for step in taken] == [step._replace(seconds=0) for step in retaken]
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(first).items())
    assert not all(torch.equal(value, weights(other)[name]) for name, value in weights(first).items())


def test_dropout_follows_from_the_seed(tmp_path):
    text = [Document("a", b"x" * CONTEXT)]  # one window, so that there is no order
    losses = []
    for seed in (0, 0, 1):
        _, taken = run(tmp_path, tiny_model(dropout=0.5), Windows(tokenise(text, BYTES), CONTEXT), steps=2, seed=seed)
        losses.append([step.loss for step in taken])
    assert losses[0] == losses[1] != losses[2]


def test_the_order_follows_from_the_seed_alone_and_goes_round(tmp_path):
    orders = {}
    for name, variant, seed, dropout in (("a", "QKV", 0, 0.0), ("b", "K=V MQA", 0, 0.3), ("c", "QKV", 1, 0.0)):
        windows = Recorded()
        run(tmp_path / name, tiny_model(variant, dropout=dropout), windows, steps=13, seed=seed)
        orders[name] = windows.asked
    assert orders["a"] == orders["b"] != orders["c"]
    rounds = [orders["a"][start : start + WINDOWS] for start in range(0, 26, WINDOWS)]
    assert [sorted(each) for each in rounds[:2]] == [list(range(WINDOWS))] * 2
    assert len(set(rounds[2])) == len(rounds[2]) == 4
    assert rounds[0] != rounds[1]


@given(st.integers(1, 10**7), st.integers(1, 64), st.integers(1, 8), st.integers(1, 2048))
def test_steps_see_at_least_the_budget_and_less_than_a_step_more(tokens, batch, accumulation, context):
    steps = TrainingSettings(batch=batch, accumulation=accumulation).steps(tokens, context)
    assert 0 <= steps * batch * accumulation * context - tokens < batch * accumulation * context


def test_each_step_is_a_line_and_a_call(tmp_path):
    told = []
    _, taken = run(tmp_path, steps=5, batch=3, accumulation=2, progress=told.append)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [{**line, "gradients": None} for line in lines] == [step._asdict() for step in taken]
    assert told == taken == read_metrics(tmp_path)
    assert [step.step for step in taken] == [1, 2, 3, 4, 5]
    assert [step.tokens for step in taken] == [number * 6 * CONTEXT for number in (1, 2, 3, 4, 5)]
    assert {step.steps for step in taken} == {5}
    assert all(step.tokens_per_second == step.tokens / step.seconds for step in taken)


def test_the_first_loss_is_the_untrained_models(tmp_path):
    windows, model = Recorded(), tiny_model()
    start = weights(model)
    model, (step, *_) = run(tmp_path, model, windows, steps=2, batch=5)
    assert model.training
    model.load_state_dict(start, strict=False)
    items = [windows.windows[index] for index in windows.asked[:5]]
    with torch.no_grad():
        logits = model(torch.stack([item["input_ids"] for item in items])).logits
    labels = torch.stack([item["shift_labels"] for item in items])
    assert step.loss == pytest.approx(torch.nn.functional.cross_entropy(logits.mT, labels).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("poison", "message"),
    [
        (math.nan, r"the loss is nan at step 4 of 6: lower the learning rate \(0\.\d+ here\)"),
        (1e25, r"the (loss|gradient's norm) is (nan|inf) at step 4 of 6"),
    ],
)
def test_a_loss_that_is_no_number_stops_the_run(tmp_path, poison, message):
    model = tiny_model()

    def after_three(step):
        if step.step == 3:
            with torch.no_grad():
                model.lm_head.weight.fill_(poison)

    with pytest.raises(ValueError, match=message):
        run(tmp_path, model, steps=6, progress=after_three)
    assert [step.step for step in read_metrics(tmp_path)] == [1, 2, 3]


def test_it_learns_what_repeats(tmp_path):
    text = [Document("a", b"one two three four five\n" * 97)]
    _, taken = run(tmp_path, windows=Windows(tokenise(text, BYTES), CONTEXT), steps=60, batch=4, learning_rate=1e-2)
    assert taken[0].loss > 4
    assert taken[-1].loss < 0.5


def test_it_writes_nothing_elsewhere(tmp_path, monkeypatch):
    for name in ("here", "scratch"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    run(Path("made/folder"), steps=2)
    made = tmp_path / "here/made/folder"
    elsewhere = [path for path in tmp_path.rglob("*") if path != made and made not in path.parents]
    assert {str(path.relative_to(tmp_path)) for path in elsewhere} == {"here", "here/made", "scratch"}
    assert {path.name for path in made.iterdir()} == {"metrics.jsonl", "checkpoints"}


@pytest.mark.parametrize("setting", ["learning_rate", "weight_decay", "clip", "warmup", "beta2"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1])
def test_settings_are_finite_and_not_negative(setting, value):
    with pytest.raises(ValidationError):
        TrainingSettings(**{setting: value})
