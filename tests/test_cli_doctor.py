"""`twofold doctor` and the environment that every record carries."""

import json
import platform
import subprocess

import pytest
import torch

from command_line import run
from twofold import environment
from twofold.version import __version__


def test_environment_has_the_keys_of_a_record():
    found = environment.environment()
    keys = "twofold python torch transformers platform processor threads device processes commit"
    assert list(found) == keys.split()
    assert found["twofold"] == __version__
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["processor"]
    assert str(found["device"]).startswith(environment.device_type())


def test_an_absent_package_has_no_version():
    assert environment.package_version("no-such-package-at-all") is None


def git(folder, *arguments):
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    git(tmp_path, "init", "--quiet")
    module = tmp_path / "environment.py"
    module.write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    monkeypatch.setattr(environment, "__file__", str(module))
    return tmp_path


def test_commit_is_the_checkouts_and_says_when_it_was_changed(repository):
    head = git(repository, "rev-parse", "HEAD")
    assert environment.commit() == head
    (repository / "environment.py").write_text("x = 2\n")
    assert environment.commit() == f"{head}-dirty"


def test_a_package_inside_some_other_repository_has_no_commit(repository, monkeypatch):
    installed = repository / "site-packages" / "environment.py"
    installed.parent.mkdir()
    installed.write_text("x = 1\n")
    monkeypatch.setattr(environment, "__file__", str(installed))
    assert environment.commit() is None


def test_no_git_no_commit(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert environment.commit() is None


def test_doctor_json(capsys):
    outcome = run(capsys, "doctor", "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert found["python"] == platform.python_version()
    assert found["torch_threads"] == torch.get_num_threads()
    assert found["cores"] >= 1
    assert all(found[name] for name in ("transformers", "accelerate", "tokenizers", "numpy", "attention_path"))


def test_doctor_tells_people_the_same(capsys):
    words = " ".join(run(capsys, "doctor").out.split())
    found = json.loads(run(capsys, "doctor", "--json").out)
    for name in ("twofold", "python", "torch", "device", "attention_path"):
        assert found[name] in words
