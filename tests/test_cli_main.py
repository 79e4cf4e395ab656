"""Exit codes, one-line errors, help, and what must not be imported."""

import subprocess
import sys

import pytest

from command_line import run
from twofold.analysis import costs
from twofold.version import __version__


def shell(command: str) -> subprocess.CompletedProcess[str]:
    # `bash`, because PIPESTATUS tells the exit code of the left side of a pipe.
    twofold = f"{sys.executable} -m twofold.cli.main"
    return subprocess.run(
        ["bash", "-c", command.replace("twofold ", f"{twofold} ")], capture_output=True, text=True, timeout=60
    )


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"twofold {__version__}\n", "")


def test_no_verb_shows_the_help(capsys):
    bare, asked = run(capsys), run(capsys, "--help")
    assert bare.code == asked.code == 0
    assert bare.out.split() == asked.out.split()
    assert {"variants", "plan", "doctor"} <= set(asked.out.split())


@pytest.mark.parametrize("verb", ["variants", "plan", "doctor", "train", "evaluate", "generate"])
def test_help_has_examples_that_fit_80_columns(capsys, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(capsys, verb, "--help")
    assert shown.code == 0
    assert f"\n twofold {verb}" in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plann"], "twofold: no such command 'plann'. Did you mean 'plan'"),
        (["--bogus"], "twofold: no such option: --bogus"),
        (["plan", "--contxt", "3"], "twofold plan: no such option: --contxt. Did you mean --context or --config?"),
        (["plan", "--context"], "twofold plan: option '--context' requires an argument."),
        (["plan", "--context", "many"], "twofold plan: invalid value for '--context': "),
        (["plan", "extra"], "twofold plan: got unexpected extra argument"),
        (["plan", "--variant", "K=W"], "twofold plan: unknown variant 'K=W': did you mean 'K=V'?"),
        (["plan", "--variant", "Q=K MQA"], "twofold plan: Q=K cannot be combined with MQA: "),
        (["plan", "--preset", "7B"], "twofold plan: unknown preset '7B': choose one of tiny, 300M, 1.2B"),
        (["plan", "--heads", "7"], "twofold plan: width 1024 is not a multiple of 7 heads"),
        (["plan", "--memory", "24G"], "twofold plan: cannot read '24G' as an amount of memory: write 24GiB"),
        (["plan", "--batch", "0"], "twofold plan: batch must be at least 1, not 0"),
        (["variants", "--jsn"], "twofold variants: no such option: --jsn. Did you mean --json?"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_2(capsys, arguments, message):
    outcome = run(capsys, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith(message)
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (ValueError("two\n  lines"), 2, "twofold plan: two lines\n"),
        (
            OSError(28, "No space left on device", "out/x.json"),
            1,
            "twofold plan: out/x.json: No space left on device\n",
        ),
        (PermissionError(13, "Permission denied"), 1, "twofold plan: [Errno 13] Permission denied\n"),
        (KeyboardInterrupt(), 130, "twofold plan: interrupted\n"),
    ],
)
def test_what_a_verb_raises_becomes_a_line_and_a_code(capsys, monkeypatch, raised, code, line):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(costs, "plan", fail)
    assert run(capsys, "plan") == (code, "", line)


def test_an_unexpected_error_keeps_its_traceback(capsys, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(costs, "plan", fail)
    with pytest.raises(ZeroDivisionError):
        run(capsys, "plan")


def test_light_verbs_import_nothing_heavy():
    code = """
import sys
from twofold.cli.main import main
for arguments in (["--help"], ["variants"], ["plan", "--json"]):
    try:
        main(arguments)
    except SystemExit as done:
        assert not done.code
print([m for m in ("torch", "transformers", "plotly", "scipy", "numpy") if m in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "[]\n"


def test_a_mistake_in_a_real_process_has_no_traceback():
    done = shell("twofold plan --preset 7B")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "twofold plan: unknown preset '7B': choose one of tiny, 300M, 1.2B\n"


def test_a_reader_who_leaves_early_gets_no_complaint():
    done = shell("twofold variants --json | head -n 1")
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_a_full_disk_is_one_line():
    done = shell("twofold plan --json > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "twofold plan: [Errno 28] No space left on device\n"


def test_a_stream_that_cannot_encode_gets_question_marks():
    done = shell("PYTHONIOENCODING=ascii twofold plan --variant QKV --variant K=V")
    assert (done.returncode, done.stderr) == (0, "")
    assert "10? MACs" in done.stdout


def test_brackets_in_what_a_user_gives_are_no_markup(capsys, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = ("--set", "model.width=24", "--set", "data.context=37", "--set", "data.held_out=0.2", "--tokens", "1")
    for name in ("m[/b]", "m[bold]"):
        outcome = run(capsys, "train", "--data", str(texts), *sizes, "--out", name)
        assert (outcome.code, outcome.out.split()[-1]) == (0, name)


def test_a_closed_standard_output_is_no_crash():
    done = subprocess.run(f'"{sys.executable}" -m twofold.cli.main variants >&-', shell=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
