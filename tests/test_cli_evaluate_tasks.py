"""`twofold evaluate --tasks`: local tasks, the harness's own on small data, standard errors, chance, and errors."""

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

import lm_eval

from command_line import run
from small_models import small_model
from twofold.data.tokenizer import BYTES
from twofold.evaluation import downstream_run
from twofold.evaluation.downstream import TwofoldLM
from twofold.evaluation.downstream_run import evaluate_tasks
from twofold.evaluation.local_tasks import make

pytestmark = pytest.mark.usefixtures("no_network")

HARNESS = Path(lm_eval.__file__).parent / "tasks"
LOCAL = ("twofold_brackets", "twofold_names", "twofold_repeat", "twofold_text")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model with its tokenizer."""
    place = tmp_path_factory.mktemp("model")
    small_model("K=V GQA-2", vocab_size=257, max_position_embeddings=480).save_pretrained(place)
    BYTES.for_transformers().save_pretrained(place)
    return place


def rows(capsys, folder, *words):
    outcome = run(capsys, "evaluate", str(folder), *map(str, words), "--json")
    assert outcome.code == 0, outcome.err
    return {(score["task"], score["metric"]): score for score in json.loads(outcome.out)["scores"]}, outcome.err


def refused(capsys, *words):
    outcome = run(capsys, "evaluate", *map(str, words))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("twofold evaluate: ").rstrip("\n")


def test_local_tasks(capsys, folder):
    found, _ = rows(capsys, folder, "--tasks", "twofold_local", "--limit", 12)
    assert [task for task, _ in found] == [*LOCAL, "twofold_text"]
    assert all(score["documents"] == 12 and score["fewshot"] == 0 for score in found.values())
    assert found["twofold_brackets", "acc"]["chance"] == pytest.approx(1 / 3)
    assert found["twofold_names", "acc"]["chance"] == 1 / 4
    for task, metric in (("twofold_repeat", "exact_match"), ("twofold_text", "bits_per_byte")):
        assert found[task, metric]["chance"] is None
    accuracy = found["twofold_names", "acc"]
    share = accuracy["value"]
    assert accuracy["error"] == pytest.approx(math.sqrt(share * (1 - share) / 11))
    # A random model in nats per byte is near log 257, or worse.
    bits, per_byte = found["twofold_text", "bits_per_byte"], found["twofold_text", "byte_perplexity"]
    assert bits["value"] > 7
    assert 2 ** bits["value"] == pytest.approx(per_byte["value"])
    assert bits["error"] * math.log(2) == pytest.approx(per_byte["error"] / per_byte["value"])


def test_the_local_documents_are_what_the_grammar_gives():
    for name, (_, tests, examples) in make.TASKS.items():
        lines = (make.FOLDER / f"{name}.jsonl").read_text().splitlines()
        documents = make.documents(name)
        assert [json.loads(line) for line in lines] == documents
        assert len({json.dumps(document) for document in documents}) == tests + examples <= 100
        assert (make.FOLDER / f"{name}.jsonl").stat().st_size < 60_000


def test_the_local_documents_have_one_right_choice():
    for document in make.documents("names"):
        text, right = document["context"], document["choices"][document["label"]]
        assert f"    {right} = " in text
        assert not any(choice in text for choice in document["choices"] if choice != right)
    for document in make.documents("brackets"):
        closed = document["context"] + document["choices"][document["label"]]
        opened = closed.splitlines()[1].strip()
        assert closed.splitlines()[-1].strip() == make.BRACKETS[opened]
    for document in make.documents("repeat"):
        assert (document["context"] + document["answer"] + "\n").count(document["answer"]) == 3
    for document in make.documents("text"):
        compile(document["text"], "text", "exec")


def test_solved_examples_go_before_each_document(folder, monkeypatch):
    contexts = []
    scored = TwofoldLM.loglikelihood
    monkeypatch.setattr(
        TwofoldLM,
        "loglikelihood",
        lambda self, asked, *a: contexts.extend(r.args[0] for r in asked) or scored(self, asked, *a),
    )
    lm = TwofoldLM(folder)
    (score,) = evaluate_tasks(lm, ["twofold_names"], fewshot=3, limit=5).scores
    assert (score.fewshot, score.documents, len(contexts)) == (3, 5, 20)
    shown = {document["context"] for document in make.documents("names") if document["split"] == "train"}
    for context in contexts:
        *examples, last = context.split("\n\n")
        assert len(examples) == 3
        assert all(any(example.startswith(known) for known in shown) for example in examples)
        assert last not in shown


def test_the_error_of_a_ratio_is_near_what_resampling_gives():
    import numpy as np

    rng = np.random.default_rng(7)
    weights = rng.integers(50, 400, 300)
    nats = -(weights * rng.normal(2.0, 0.4, 300))
    pairs = list(zip(nats.tolist(), weights.tolist(), strict=True))
    bits = -nats.sum() / weights.sum() / math.log(2)
    chosen = rng.integers(0, 300, (2000, 300))
    resampled = -nats[chosen].sum(1) / weights[chosen].sum(1) / math.log(2)
    assert downstream_run._ratio_error("bits_per_byte", bits, pairs) == pytest.approx(resampled.std(), rel=0.08)
    resampled = np.exp(-nats[chosen].sum(1) / weights[chosen].sum(1))
    found = downstream_run._ratio_error("byte_perplexity", 2**bits, pairs)
    assert found == pytest.approx(statistics.stdev(resampled), rel=0.08)
    assert downstream_run._ratio_error("bits_per_byte", bits, pairs[:1]) is None


ENDINGS = {"endings": ["a b", "c d e", "f", "g h"], "label": "2", "ctx_a": "x", "ctx_b": "y", "activity_label": "z"}
CHOICES = {"question": "q", "choices": {"text": ["a", "b", "c", "d"], "label": ["A", "B", "C", "D"]}, "answerKey": "B"}
BENCHMARKS = {
    "hellaswag": ("hellaswag", ENDINGS, 1 / 4),
    "piqa": ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": 1}, 1 / 2),
    "arc_easy": ("arc", CHOICES, 1 / 4),
    "arc_challenge": ("arc", CHOICES, 1 / 4),
    "winogrande": (
        "winogrande",
        {"sentence": "The _ is red.", "option1": "cup", "option2": "box", "answer": "1"},
        1 / 2,
    ),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_by_name(folder, monkeypatch, name):
    """The harness's own task files, on documents of their form."""
    import datasets

    place, document, chance = BENCHMARKS[name]
    rows = [{**document, "number": n} for n in range(3)]
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda path, name=None, **_: datasets.DatasetDict(
            {split: datasets.Dataset.from_list(rows) for split in ("train", "validation", "test")}
        ),
    )
    found = evaluate_tasks(TwofoldLM(folder), [name], folders=[HARNESS / place])
    assert {score.chance for score in found.scores} == {chance}
    assert {score.documents for score in found.scores} == {3}
    assert "acc" in {score.metric for score in found.scores}


def test_a_value_within_two_errors_of_chance_is_told(capsys, folder):
    found, told = rows(capsys, folder, "--tasks", "twofold_brackets", "--limit", 30, "--context", 25)
    score = found["twofold_brackets", "acc"]
    near = abs(score["value"] - 1 / 3) <= 2 * score["error"]
    assert near == ("twofold_brackets, acc: " in told and "which guessing reaches" in told)
    assert "contexts did not fit into 25 tokens and lost their beginning" in told
    for value, error, expected in ((0.5, 0.126, True), (0.5, 0.124, False), (0.5, None, False)):
        assert downstream_run.Score("t", "acc", value, error, 0.25, 9, 0, True).may_be_chance is expected


def test_the_table_and_the_file(capsys, folder, tmp_path):
    shown = run(
        capsys, "evaluate", str(folder), "--tasks", "twofold_names", "--limit", "7", "--out", f"{tmp_path}/o.json"
    )
    assert shown.code == 0
    (score,) = json.loads((tmp_path / "o.json").read_text())["scores"]
    lines = [line.split() for line in shown.out.splitlines()]
    cells = next(line for line in lines if line[:1] == ["twofold_names"])
    assert cells[1:] == ["acc", "↑", f"{score['value']:.4f}", f"{score['error']:.4f}", "0.2500", "7", "0"]


def test_a_task_of_ones_own(capsys, folder, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"q": "1+1=", "a": "2"}\n{"q": "2+2=", "a": "4"}\n')
    (tmp_path / "mine.yaml").write_text(
        f"task: mine\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/mine.jsonl}}}}\n"
        "output_type: loglikelihood\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "target_delimiter: ''\n"
    )
    found, _ = rows(capsys, folder, "--tasks", "mine", "--task-path", tmp_path)
    assert {metric for _, metric in found} == {"acc", "perplexity"}
    assert found["mine", "perplexity"]["error"] > 0


def test_what_is_refused(capsys, folder, tmp_path, monkeypatch):
    assert refused(capsys, folder, "--tasks", ",").startswith("--tasks names none")
    assert refused(capsys, folder, "--limit", 3).endswith("belong to tasks: name some with --tasks")
    assert refused(capsys, folder, "--tasks", "a", "--data", "b").startswith("tasks bring their own text")
    assert "documents at least 1" in refused(capsys, folder, "--tasks", "twofold_names", "--limit", 0)
    assert "is no folder: give one with task files" in refused(
        capsys, folder, "--tasks", "x", "--task-path", tmp_path / "no"
    )
    assert "is no folder: make it" in refused(capsys, folder, "--tasks", "x", "--out", tmp_path / "no/o.json")
    assert refused(capsys, folder, "--tasks", "twofold_names", "--num-fewshot", 9).startswith("The harness cannot run")
    monkeypatch.setattr(downstream_run, "find_spec", lambda name: None)
    assert refused(capsys, folder, "--tasks", "a").endswith("pip install 'twofold[downstream]'")


def test_a_dataset_that_cannot_be_reached(capsys, folder, tmp_path, monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub (LocalEntryNotFoundError)\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    assert refused(capsys, folder, "--tasks", "hellaswag", "--task-path", HARNESS / "hellaswag") == (
        "The task 'hellaswag' cannot be read: Couldn't reach 'a/b' on the Hub (LocalEntryNotFoundError); without a "
        "network its dataset must be in the cache of `datasets`, or take a local task"
    )


def test_an_unknown_task(folder, monkeypatch):
    from lm_eval.tasks import TaskManager

    few = TaskManager(include_path=str(make.FOLDER), include_defaults=False)
    monkeypatch.setattr(downstream_run, "_manager", lambda *_: few)  # the harness's own index takes seconds
    with pytest.raises(ValueError, match=r"no task 'twofold_name'\. Did you mean twofold_names"):
        evaluate_tasks(TwofoldLM(folder), ["twofold_name"])


@pytest.mark.system
@pytest.mark.parametrize("command", [("-m", "lm_eval"), ("-m", "twofold.evaluation.lm_eval_command")])
def test_the_harness_own_command(folder, tmp_path, command):
    """As it is, it knows the model wherever a task is a file of ours; ours knows it always."""
    own = command[1] != "lm_eval"
    task = ["twofold_names", "--include_path", str(make.FOLDER)] if own else [f"{make.FOLDER}/twofold_names.yaml"]
    options = ["--model", "twofold", "--model_args", f"pretrained={folder}", "--limit", "9", "--batch_size", "4"]
    done = subprocess.run(
        [sys.executable, *command, *options, "--output_path", str(tmp_path / "results"), "--tasks", *task],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = (tmp_path / "results").rglob("results*.json")
    theirs = json.loads(file.read_text())["results"]["twofold_names"]
    (ours,) = evaluate_tasks(TwofoldLM(folder), ["twofold_names"], limit=9).scores
    assert (theirs["acc,none"], theirs["acc_stderr,none"]) == pytest.approx((ours.value, ours.error))
