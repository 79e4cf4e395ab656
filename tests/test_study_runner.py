"""Studies: what is run, what is left alone, what is refused, and what the records and results say."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tiny_study import BATCH, CONTEXT, STEPS, VARIANTS, files, make, spec, tiny_model, write_texts
from twofold.data.corpus import load_corpus
from twofold.data.split import split
from twofold.data.tokenizer import BYTES
from twofold.evaluation.bigram import bigram_bits_per_byte
from twofold.evaluation.heldout import evaluate
from twofold.models.load import load_model
from twofold.report.headline import notes
from twofold.study import execute
from twofold.study.collection import collect_results
from twofold.study.plan import claimed, note_study, planned_runs
from twofold.study.record import read_record
from twofold.training.metrics import read_metrics
from twofold.variants.layout import cache_bytes

ALL = [(variant, 0) for variant in VARIANTS]


@pytest.fixture
def study(finished_study, tmp_path):
    """A copy of the finished study, to change."""
    return shutil.copytree(finished_study, tmp_path / "study")


def records(out, study_spec):
    return [read_record(run.folder / "record.json") for run in planned_runs(study_spec, out)]


def test_records_are_complete_and_true(finished_study, texts):
    study_spec = spec(texts)
    corpus = load_corpus(str(texts))
    held_out = split(corpus, study_spec.data.held_out)[1]
    for run, record in zip(planned_runs(study_spec, finished_study), records(finished_study, study_spec), strict=True):
        sizes = study_spec.model.architecture(run.variant)
        model = load_model(run.folder)
        assert (record.variant, record.seed) == (run.variant, run.seed) == (model.config.variant, 0)
        assert record.parameters["total"] == sum(p.numel() for p in model.parameters())
        assert record.validation.model_dump() == evaluate(model, held_out, CONTEXT).as_dict()
        assert [(d.name, d.bytes) for d in record.documents] == [(d.name, len(d.content)) for d in held_out]
        # END and 13 bytes of prompt and 7 new tokens, the last of which is never read.
        assert record.cache.tokens == 1 + 13 + 7 - 1
        formula = cache_bytes(sizes.row_layout, sizes.kv_heads, tokens=20, itemsize=4, layers=2)
        assert record.cache.bytes_used == record.cache.bytes_formula == formula <= record.cache.bytes_reserved
        assert record.sample.prompt.encode() == held_out[0].content[:13]
        assert len(record.sample.text) > 0
        assert record.environment.torch == torch.__version__
        assert record.configuration["training"]["batch"] == BATCH
        assert record.configuration["corpus"]["sha256"] == corpus.sha256
        assert record.configuration["model_config"]["variant"] == run.variant
        steps = read_metrics(run.folder)
        assert len(steps) == STEPS
        assert [(p.tokens, p.loss) for p in record.curve] == [(s.tokens, s.loss) for s in steps]


def test_a_run_leaves_its_files_and_no_others(finished_study):
    found = {name.split("/", 1)[1] for name in files(finished_study / "runs")}
    model = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert found == {"record.json", "metrics.jsonl", "settings.json"} | {f"model/{name}" for name in model}
    assert {path.name for path in finished_study.iterdir()} == {"study.json", "origin.json", "runs", ".locks"}


def test_variants_share_initial_values_and_the_order_of_the_data(texts, tmp_path, monkeypatch):
    seen = []

    def spy(model, windows, *arguments, **options):
        order = []

        class Recorded(torch.utils.data.Dataset):
            def __len__(self):
                return len(windows)

            def __getitem__(self, index):
                order.append(index)
                return windows[index]

        seen.append(({name: p.detach().clone() for name, p in model.named_parameters()}, order))
        return train(model, Recorded(), *arguments, **options)

    train = execute.train
    monkeypatch.setattr(execute, "train", spy)
    make(spec(texts, seeds=[0, 1]), tmp_path / "out")
    (full, order), (shared, same_order), (other, other_order), _ = seen
    assert order == same_order != other_order
    assert not torch.equal(full["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    common = [name for name in full if name in shared and full[name].shape == shared[name].shape]
    assert {"model.embed_tokens.weight", "model.layers.1.attention.projections.q_proj.weight"} <= set(common)
    assert all(torch.equal(full[name], shared[name]) for name in common)


def test_finished_runs_are_left_alone(study, texts):
    before = files(study)
    assert make(spec(texts), study) == []
    assert files(study / "runs") == {name[5:]: file for name, file in before.items() if name.startswith("runs/")}
    assert {name: file[0] for name, file in files(study).items()} == {name: file[0] for name, file in before.items()}


def test_a_missing_record_is_made_again_bit_by_bit(study, texts):
    first, second = planned_runs(spec(texts), study)
    left_alone, lost = files(first.folder), read_record(second.folder / "record.json")
    weights = load_file(second.folder / "model/model.safetensors")
    (second.folder / "record.json").unlink()
    assert make(spec(texts), study) == ALL[1:]
    again = read_record(second.folder / "record.json")
    assert again.validation == lost.validation
    assert (again.documents, again.curve, again.sample) == (lost.documents, lost.curve, lost.sample)
    made = load_file(second.folder / "model/model.safetensors")
    assert all(torch.equal(weights[name], made.pop(name)) for name in list(weights))
    assert not made
    assert files(first.folder) == left_alone


def test_added_variants_and_seeds_run_alone(study, texts):
    before = files(study / "runs")
    larger = spec(texts, variants=["QKV", "Q=K", "K=V MQA"], seeds=[0, 3])
    assert make(larger, study) == [("Q=K", 0), ("QKV", 3), ("Q=K", 3), ("K=V MQA", 3)]
    after = files(study / "runs")
    assert all(after[name] == file for name, file in before.items())
    assert len(collect_results(study).runs) == 6
    assert make(spec(texts), study) == []
    assert len(collect_results(study).runs) == 2  # results are of what the study names now


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"tokens": 5}, "tokens is 1221 there and 5 here"),
        ({"training": {"batch": 3, "clip": 2.0}}, "training.clip is 1.0 there and 2.0 here"),
        ({"model": {"layers": 2, "width": 24, "heads": 4}}, "model.mlp is 31 there and None here"),
        ({"sample": {"prompt": 13, "tokens": 8}}, "sample.tokens is 7 there and 8 here"),
    ],
)
def test_other_settings_are_refused_by_name(study, texts, changes, difference):
    before = files(study)
    with pytest.raises(ValueError, match="holds runs of other settings") as raised:
        make(spec(texts, **changes), study)
    assert difference in str(raised.value)
    assert files(study) == before


def test_settings_may_change_until_a_run_is_finished(texts, tmp_path):
    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(spec(texts), tmp_path / "out", at_step=stop)
    assert make(spec(texts, tokens=1), tmp_path / "out") == ALL


def test_changed_text_is_refused(tmp_path):
    folder = write_texts(tmp_path / "texts")
    make(spec(folder, variants=["QKV"], tokens=1), tmp_path / "out")
    (folder / "one_more.txt").write_text("text")
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"11 documents of \d+ bytes then, 12 of \d+ now"):
        make(spec(folder, tokens=1), tmp_path / "out")
    assert files(tmp_path / "out") == before
    assert make(spec(folder, variants=["QKV"], tokens=1), tmp_path / "out") == []  # what is finished needs no text


def test_a_foreign_folder_is_refused_and_left_alone(texts, tmp_path):
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no study: choose another folder"):
        make(spec(texts), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("data", "message"),
    [({"source": "no/such/folder"}, "no/such/folder"), ({"context": 10**6}, "Too little text")],
)
def test_text_that_will_not_do_leaves_no_folder(texts, tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        make(spec(texts, data={"source": str(texts), **data}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_is_not_finished(texts, tmp_path):
    def stop(step):
        if step.step == 3:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        make(spec(texts), out, at_step=stop)
    assert [run.state for run in planned_runs(spec(texts), out)] == ["interrupted", "to run"]
    with claimed(planned_runs(spec(texts), out)[0]):
        assert [run.state for run in planned_runs(spec(texts), out)] == ["running", "to run"]
    assert [run.state for run in planned_runs(spec(texts), out)] == ["interrupted", "to run"]
    with pytest.raises(ValueError, match="no run is finished yet"):
        collect_results(out)
    assert make(spec(texts), out) == ALL


@pytest.mark.parametrize("part", ["write_record", "save_model"])
def test_a_full_disk_leaves_the_run_unfinished(texts, tmp_path, monkeypatch, part):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(execute, part, fail)
    with pytest.raises(OSError, match="No space left"):
        make(spec(texts), tmp_path / "out")
    monkeypatch.undo()
    assert not list((tmp_path / "out").rglob("record.json"))
    assert make(spec(texts), tmp_path / "out") == ALL


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (1, r"held-out loss is \w+: lower the learning rate"),
        (10**4, r"the (loss|gradient's norm) is \w+ at step \d+ of"),
    ],
)
def test_a_run_that_diverges_is_noted_and_left_out(texts, tmp_path, tokens, reason):
    wild = spec(texts, tokens=tokens, training={"batch": BATCH, "learning_rate": 1e60})
    out = tmp_path / "out"
    assert make(wild, out) == ALL  # the first one's failure does not keep the second from its turn
    assert make(wild, out) == []  # and nothing is tried again that would end the same way
    assert all(re.search(reason, run.diverged) for run in planned_runs(wild, out))
    with pytest.raises(ValueError, match="no run is finished, and 2 diverged: QKV, seed 0: the"):
        collect_results(out)


def test_a_run_that_another_process_has_is_waited_for_and_taken_over(texts, tmp_path):
    out = tmp_path / "out"
    first, second = planned_runs(spec(texts), out)
    note_study(spec(texts), out)
    claim = claimed(first)
    assert claim.__enter__() is True
    with claimed(first) as mine:
        assert not mine
    assert [run.state for run in (first, second)] == ["running", "to run"]

    def let_go(step):
        if step.step == STEPS and not second.finished:
            claim.__exit__(None, None, None)  # as if the other process had died

    assert make(spec(texts), out, at_step=let_go) == [("K=V MQA", 0), ("QKV", 0)]


def test_an_interrupted_run_goes_on_where_it_was(texts, tmp_path, finished_study):
    def stop(step):
        if step.step == 7:
            raise KeyboardInterrupt

    out, reached = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        make(spec(texts), out, at_step=stop)
    assert make(spec(texts), out, at_step=lambda step: reached.append(step.step)) == ALL
    assert reached == [*range(7, STEPS + 1), *range(1, STEPS + 1)]
    for made, whole in zip(records(out, spec(texts)), records(finished_study, spec(texts)), strict=True):
        assert (made.validation, made.documents, made.curve) == (whole.validation, whole.documents, whole.curve)


def test_results_say_who_diverged(study, texts):
    first, second = planned_runs(spec(texts), study)
    (second.folder / "record.json").unlink()
    (second.folder / "diverged.txt").write_text("the loss is nan at step 4 of 11\n")
    assert make(spec(texts), study) == []
    results = collect_results(study)
    assert [run.variant for run in results.runs] == [first.variant]
    assert [failure.model_dump() for failure in results.diverged] == [
        {"label": "K=V MQA", "variant": "K=V MQA", "seed": 0, "reason": "the loss is nan at step 4 of 11"}
    ]
    assert "K=V MQA with seed 0 diverged" in " ".join(notes(results))


def test_results_have_the_keys_that_programs_rely_on(study, texts):
    collect_results(study)
    results = json.loads((study / "results.json").read_text())
    assert {"runs", "summary", "frontier", "command", "corpus"} <= results.keys()
    run_keys = {"variant", "seed", "parameters", "validation", "cache", "speed", "environment", "sample"}
    for run in results["runs"]:
        assert run_keys <= run.keys()
        assert "documents" not in run
        assert run["validation"].keys() == {"loss", "bits_per_byte", "perplexity", "tokens", "bytes"}
        assert {"tokens", "bytes_formula", "bytes_used", "bytes_reserved"} <= run["cache"].keys()
    assert [run["variant"] for run in results["runs"]] == list(VARIANTS)
    assert {entry["variant"] for entry in results["summary"]} == set(VARIANTS)
    assert set(results["frontier"]) <= set(VARIANTS)
    training, held_out = split(load_corpus(str(texts)), 0.2)
    assert results["bigram_bits_per_byte"] == bigram_bits_per_byte(training, held_out)
    assert len((study / "results.csv").read_text().splitlines()) == 1 + len(VARIANTS)


def test_a_saved_model_is_the_trained_one(tmp_path):
    model = tiny_model("K=V MQA", seed=5).eval()
    execute.save_model(model, tmp_path / "model", BYTES)
    ids = torch.arange(257)[None, ::7]
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path)(ids).logits, model(ids).logits)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_settings_that_diverged_may_be_mended_in_place(texts, tmp_path):
    wild = {"batch": BATCH, "learning_rate": 1e60}
    assert make(spec(texts, training=wild), tmp_path / "out") == ALL
    assert make(spec(texts), tmp_path / "out") == ALL
    assert not list((tmp_path / "out").rglob("diverged.txt"))


def test_settings_are_not_changed_under_another_process(texts, tmp_path):
    out = tmp_path / "out"
    note_study(spec(texts), out)
    with (
        claimed(planned_runs(spec(texts), out)[0]),
        pytest.raises(ValueError, match=r"another process is at work in .* with other settings"),
    ):
        make(spec(texts, tokens=5), out)
