"""Progress on standard error: lines now and then where there is no terminal, a bar on one."""

import io

import pytest
from rich.console import Console

from twofold.cli import progress
from twofold.training.metrics import Step


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test moves by hand."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def step(number: int) -> Step:
    return Step(number, 40, number * 100, loss=2.5, learning_rate=1e-3, gradient_norm=1.0, seconds=2.0 * number)


def test_a_line_now_and_then_tells_speed_and_time_left(capsys, clock):
    with progress.running("1 of 2: QKV, seed 0") as watcher:
        for number in range(1, 9):
            clock[0] += 4
            watcher.trained(step(number))
        clock[0] += 10
        watcher.evaluated(700, 2100)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "1 of 2: QKV, seed 0: step 3 of 40, loss 2.500  50 tokens/s, 1 min 14 s left",
        "1 of 2: QKV, seed 0: step 6 of 40, loss 2.500  50 tokens/s, 1 min 08 s left",
        "1 of 2: QKV, seed 0: evaluated 700 of 2,100 tokens",
        "1 of 2: QKV, seed 0: done in 42 s",
    ]


def told(seconds, steps=1000, later=0):
    """What is said of the time left after each of the first steps, which end at these seconds."""
    with progress.running("x", later=later, quiet=True) as watcher:
        return [
            watcher._estimate(Step(number, steps, number * 100, 2.5, 1e-3, 1.0, second))
            for number, second in enumerate(seconds, start=1)
        ]


def test_no_estimate_before_there_is_something_to_go_by():
    assert told([17.0, 17.5, 18.0]) == ["", "", ""]
    assert told([17.0, 23.0])[-1] == ", 1 h 39 min left"  # five seconds without the first step
    ten = told([17.0 + number / 10 for number in range(11)])
    assert ten == [*[""] * 10, ", 1 min 39 s left"]  # ten steps, at the speed of these alone
    assert told([17.0, 17.5, 18.0], steps=40) == ["", "", ", 18 s left"]  # 5 % of all
    assert told([17.0, 18.0], steps=11, later=2) == ["", ", 9 s left, all runs about 31 s"]


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=100, highlight=False)
    )
    with progress.running("QKV, seed 0") as watcher:
        watcher.trained(step(10))
        watcher.bar.refresh()
    assert "QKV, seed 0: training" in screen.getvalue()
    assert "25 %" in screen.getvalue()
    assert "loss 2.500  50 tokens/s" in screen.getvalue()
    assert "step 10 of 40" not in screen.getvalue()


def test_a_run_that_fails_is_not_called_done(capsys):
    with pytest.raises(ZeroDivisionError), progress.running("QKV, seed 0"):
        raise ZeroDivisionError
    assert capsys.readouterr() == ("", "")


def test_an_evaluation_alone_is_quiet_without_a_terminal(capsys):
    with progress.evaluating() as told:
        told(5, 10)
    assert capsys.readouterr() == ("", "")
