"""A study's text from every kind of source, and what its scores mean under other tokens."""

import json
import math
import shutil

import datasets
import pytest

from command_line import run
from local_datasets import COLUMN, json_lines, parquet, saved, stories, texts_of
from tiny_study import content, documents, files, make, spec, tiny_model, write_texts
from twofold.data.dataset import DatasetSource, load_rows
from twofold.data.pretrained_tokenizer import pretrained
from twofold.data.tokenizer import BYTES, choose, load_tokenizer
from twofold.evaluation.bigram import bigram_bits_per_byte
from twofold.evaluation.heldout import evaluate
from twofold.study.data import StudyData
from twofold.study.data_spec import DataSpec
from twofold.study.execute import may_go_on
from twofold.study.load import checked, load_study
from twofold.study.plan import planned_runs
from twofold.study.record import read_record
from twofold.study.results import CorpusRecord
from twofold.study.texts import SplitTexts, whole_text


@pytest.fixture(scope="module", autouse=True)
def _own_caches(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        datasets.disable_progress_bars()
        yield


def study(folder, **data):
    named = {"source": f"dataset:{folder}", "column": COLUMN, "context": 19, **data}
    return spec(folder, data=named, tokens=19 * 3 * 2, sample={"prompt": 13, "tokens": 3}, variants=["K=V MQA"])


def contents(documents):
    return sorted(document.content for document in documents)


def test_a_dataset_is_split_by_share(tmp_path):
    data = StudyData.load(study(json_lines(tmp_path), held_out=0.2))
    corpus = load_rows(DatasetSource(str(tmp_path), column=COLUMN))
    assert contents(data.texts.training + data.held_out) == contents(corpus.documents)
    assert sum(d.size for d in data.held_out) >= 0.2 * corpus.bytes
    record = data.record()
    assert (record.sha256, record.stream) == (corpus.sha256, "")
    assert (record.documents, record.bytes) == (len(corpus.documents), corpus.bytes)
    assert data.bigram() == bigram_bits_per_byte(data.texts.training, data.held_out)


def test_a_split_can_be_what_is_held_out(tmp_path):
    saved(tmp_path)
    data = StudyData.load(study(tmp_path, held_out_split="test"))
    assert contents(data.texts.training) == sorted(texts_of(stories()))
    assert contents(data.held_out) == [b"held out one", b"held out two"]
    assert data.record().documents == len(data.texts.training) + 2
    fewer = SplitTexts.read(study(tmp_path, held_out_split="test", held_out_documents=1).data)
    assert contents(fewer.held_out) == [b"held out one"]
    assert len({data.corpus.sha256, fewer.corpus.sha256}) == 2


def test_of_a_stream_the_first_documents_are_held_out_and_the_rest_trained_on(tmp_path):
    parquet(tmp_path)
    data = StudyData.load(study(tmp_path, streaming=True, held_out_documents=5))
    whole = texts_of(stories(21))
    assert [document.content for document in data.held_out] == whole[:5]
    assert [document.content for document in data.texts.beginning()] == whole[5:]
    record = data.record()
    assert (record.documents, record.bytes, record.held_out_bytes) == (5, sum(map(len, whole[:5])), record.bytes)
    assert json.loads(record.stream)["name"] == str(tmp_path)
    windows = iter(data.windows)
    first = next(windows)["input_ids"].tolist()
    assert first == [BYTES.end, *whole[5]][:19]
    again = StudyData.load(study(tmp_path, streaming=True, held_out_documents=5))
    assert again.corpus.sha256 == data.corpus.sha256
    fewer = StudyData.load(study(tmp_path, streaming=True, held_out_documents=4))
    assert fewer.corpus.sha256 != data.corpus.sha256
    assert contents(whole_text(study(tmp_path, streaming=True, held_out_documents=4).data)) == sorted(whole[:4])
    assert contents(whole_text(study(tmp_path).data)) == sorted(whole)


def test_a_stream_that_is_all_held_out(tmp_path):
    json_lines(tmp_path)
    with pytest.raises(ValueError, match=r"holding out 19 document\(s\) leaves nothing to train on"):
        StudyData.load(study(tmp_path, streaming=True))


def test_a_streamed_study_with_tokens_of_its_own_runs_and_is_evaluated_again(capsys, tmp_path):
    parquet(tmp_path / "texts")
    streamed = study(tmp_path / "texts", streaming=True, held_out_documents=3, tokenizer="bpe-277", packing="separate")
    make(streamed, tmp_path / "out")
    folder = tmp_path / "out/runs/K=V_MQA_seed0"
    record = read_record(folder / "record.json")
    assert record.configuration["data"]["streaming"]
    assert record.validation.bytes == sum(len(text) for text in texts_of(stories(21))[:3])
    scored = json.loads(run(capsys, "evaluate", str(folder), "--json").out)
    assert scored["bits_per_byte"] == record.validation.bits_per_byte
    assert scored["tokens"] == record.validation.tokens < record.validation.bytes


@pytest.fixture(scope="module")
def two_tokenizers(tmp_path_factory):
    """One run on bytes and one on BPE tokens of the same text, untrained but for a few steps: its folders."""
    place = tmp_path_factory.mktemp("two")
    texts = write_texts(place / "texts")
    folders = {}
    for name in ("bytes", "bpe-271"):
        changed = {**content(texts)["data"], "tokenizer": name}
        make(spec(texts, data=changed, variants=["QKV"]), place / name)
        folders[name] = place / name / "runs/QKV_seed0"
    return folders


def test_bits_per_byte_are_of_the_same_bytes_whatever_the_tokens(two_tokenizers):
    plain, merged = (read_record(folder / "record.json") for folder in two_tokenizers.values())
    assert [(d.name, d.bytes) for d in plain.documents] == [(d.name, d.bytes) for d in merged.documents]
    assert all(one.tokens == one.bytes + 1 for one in plain.documents)
    for record in (plain, merged):
        nats = math.fsum(document.nats for document in record.documents)
        assert record.validation.bits_per_byte == pytest.approx(nats / math.log(2) / record.validation.bytes)
        assert record.validation.tokens == sum(document.tokens for document in record.documents)
        vocabulary = record.configuration["model_config"]["vocab_size"]
        assert record.validation.loss < 1.1 * math.log(vocabulary)
    tokenizer = load_tokenizer(two_tokenizers["bpe-271"] / "model")
    held_out = SplitTexts.read(DataSpec.model_validate({**merged.configuration["data"], "tokenizer": "bytes"})).held_out
    for scored, document in zip(merged.documents, held_out, strict=True):
        assert scored.tokens == len(tokenizer.encode(document.content)) + 1


def test_a_uniform_model_needs_the_same_bits_for_the_same_tokens():
    """log2(V) bits per token: bytes at 257 tokens cost (bytes + 1) · log2(257) / bytes each."""
    texts = documents(4)
    for tokenizer in (BYTES, choose("bpe-269", lambda: texts)):
        model = tiny_model(vocab=tokenizer.vocabulary)
        for parameter in model.parameters():
            parameter.data.zero_()
        made = evaluate(model, texts, 37, tokenizer=tokenizer)
        tokens = sum(len(tokenizer.encode(document.content)) + 1 for document in texts)
        expected = tokens * math.log2(tokenizer.vocabulary) / sum(document.size for document in texts)
        assert made.bits_per_byte == pytest.approx(expected, rel=1e-6)


def test_a_models_own_tokenizer_is_taken_by_evaluate_and_generate(capsys, two_tokenizers, tmp_path):
    folder = two_tokenizers["bpe-271"]
    record = read_record(folder / "record.json")
    tokenizer = load_tokenizer(folder / "model")
    scored = json.loads(run(capsys, "evaluate", str(folder), "--json").out)
    assert (scored["tokens"], scored["bits_per_byte"]) == (record.validation.tokens, record.validation.bits_per_byte)
    made = json.loads(run(capsys, "generate", str(folder), "def self", "--tokens", "3", "--json").out)
    assert made["prompt"] == "def self"
    assert made["cached_tokens"] == 1 + len(tokenizer.encode(b"def self")) + made["new_tokens"] - 1
    source = f"dataset:{json_lines(tmp_path)}"
    outcome = run(capsys, "evaluate", str(folder), "--data", source, "--set", "data.column=nope")
    assert outcome.code == 2
    assert f"has no column 'nope': name one with data.column; there are {COLUMN}" in outcome.err
    words = ("--data", source, "--set", f"data.column={COLUMN}", "--json")
    assert json.loads(run(capsys, "evaluate", str(folder), *words).out)["bytes"] == sum(map(len, texts_of(stories())))


@pytest.mark.parametrize("verb", ["generate", "evaluate"])
def test_a_model_whose_tokenizer_is_lost_or_damaged(capsys, two_tokenizers, tmp_path, verb):
    folder = shutil.copytree(two_tokenizers["bpe-271"], tmp_path / "run")
    words = (verb, str(folder), *(["def"] if verb == "generate" else []))
    config = folder / "model/tokenizer_config.json"
    config.write_text("[]")
    outcome = run(capsys, *words)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "its files are damaged" in outcome.err
    config.unlink()
    outcome = run(capsys, *words)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "its model has 271 tokens, where bytes have 257" in outcome.err


@pytest.mark.parametrize("settings", [(), ("--set", "data.streaming=true")])
def test_a_dataset_without_rows_is_told_by_evaluate(capsys, two_tokenizers, tmp_path, settings):
    datasets.Dataset.from_dict({"text": []}).save_to_disk(tmp_path)
    outcome = run(capsys, "evaluate", str(two_tokenizers["bytes"]), "--data", f"dataset:{tmp_path}", *settings)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f"Cannot read dataset:{tmp_path}, split train: it has no rows" in outcome.err


def permute(folder):
    """Give two bytes each other's ids, as a tokenizer that was trained again may."""
    made = json.loads((folder / "tokenizer.json").read_text())
    words = made["model"]["vocab"]
    words["a"], words["e"] = words["e"], words["a"]
    (folder / "tokenizer.json").write_text(json.dumps(made))
    pretrained.cache_clear()  # as in another process


@pytest.fixture
def own_tokenizer(tmp_path):
    """A study whose tokenizer is a folder, and that folder."""
    folder = tmp_path / "tokenizer"
    BYTES.for_transformers().save_pretrained(folder)
    texts = write_texts(tmp_path / "texts")
    pretrained.cache_clear()
    return spec(texts, data={**content(texts)["data"], "tokenizer": str(folder)}, variants=["QKV"]), folder


def test_runs_of_other_tokens_are_not_put_beside_those_of_the_first(own_tokenizer, tmp_path):
    study, folder = own_tokenizer
    make(study, tmp_path / "out")
    more = study.model_copy(update={"seeds": (0, 1)})
    permute(folder)
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"^the tokenizer is not the one that the runs in [^\n]*$"):
        make(more, tmp_path / "out")
    assert files(tmp_path / "out") == before
    permute(folder)
    assert make(more, tmp_path / "out") == [("QKV", 1)]


def test_an_interrupted_run_of_other_tokens_begins_again(own_tokenizer, tmp_path):
    study, folder = own_tokenizer

    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(study, tmp_path / "out", at_step=stop)
    (planned,) = planned_runs(study, tmp_path / "out")
    assert may_go_on(planned, study, StudyData.load(study))
    permute(folder)
    assert not may_go_on(planned, study, StudyData.load(study))


def test_of_bytes_nothing_more_is_noted_and_what_was_noted_before_is_read(two_tokenizers):
    noted = {name: json.loads((folder / "settings.json").read_text()) for name, folder in two_tokenizers.items()}
    assert "tokenizer" not in noted["bytes"]
    merged = read_record(two_tokenizers["bpe-271"] / "record.json").configuration["corpus"]
    assert merged["tokenizer"] == noted["bpe-271"]["tokenizer"] != ""
    plain = read_record(two_tokenizers["bytes"] / "record.json").configuration["corpus"]
    assert merged.keys() - plain.keys() == {"tokenizer"}
    assert CorpusRecord.model_validate(plain).tokenizer == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": "texts", "column": "story"}, "data.column: only datasets have this"),
        ({"source": "texts", "streaming": True}, "data.streaming: only datasets have this"),
        ({"source": "dataset: "}, "data.source: name a dataset"),
        ({"source": "dataset:a", "held_out_split": "train"}, "data.held_out_split: train is what"),
        ({"source": "dataset:a", "held_out_documents": 3}, "data.held_out_documents: goes with streaming"),
        ({"source": "dataset:a", "shuffle_buffer": 3}, "unknown key 'data.shuffle_buffer'"),
        ({"tokenizer": "bpe-12"}, "data.tokenizer: 'bpe-12' is no tokenizer"),
        ({"tokenizer": "/no/tokenizer"}, "data.tokenizer: No tokenizer '/no/tokenizer'"),
    ],
)
def test_what_does_not_fit_is_told_at_its_place(data, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        checked({"name": "x", "variants": ["QKV"], "tokens": 1, "data": data})
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "tokens"), [("tinystories", 4096), ("slimpajama", 32768), ("fineweb", 32768)])
def test_built_in_studies_of_streams_are_whole(name, tokens):
    study = load_study(name)
    assert study.data.streaming
    assert study.data.dataset is not None
    assert {one.architecture.vocab for one in study.contenders} == {tokens}
    assert max(study.data.context, study.sample.prompt + study.sample.tokens) <= 2048


def test_vocabulary_counts_before_any_model_is_made():
    assert DataSpec().vocabulary == 257
    assert DataSpec(tokenizer="bpe-4096").vocabulary == 4096
