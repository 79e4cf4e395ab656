"""`twofold train`: one run in a folder of its own, from options and study keys."""

import json

import pytest

from command_line import run
from local_datasets import COLUMN, parquet
from tiny_study import CONTEXT

SIZES = ("model.layers=2", "model.width=24", "model.mlp=31", f"data.context={CONTEXT}", "data.held_out=0.2")
QUICK = ("training.batch=3", "sample.prompt=13", "sample.tokens=7")


def arguments(texts, out=None, settings=(*SIZES, *QUICK), **options):
    chosen = {"data": str(texts), "tokens": "500", **options, **({"out": str(out)} if out else {})}
    pairs = [(f"--{name}", value) for name, value in chosen.items()] + [("--set", setting) for setting in settings]
    return ["train", *(word for pair in pairs for word in pair)]


def refused(capsys, *words):
    """The one line on standard error, less the verb."""
    outcome = run(capsys, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("twofold train: ").rstrip("\n")


def test_a_model_is_trained_recorded_and_told(capsys, texts, tmp_path):
    out = tmp_path / "new" / "model here"
    outcome = run(capsys, *arguments(texts, out, variant="k=v gqa-2", seed="3"), "--json")
    assert outcome.code == 0
    assert outcome.err.startswith("K=V GQA-2, seed 3: done in ")
    told = json.loads(outcome.out)
    written = json.loads((out / "record.json").read_text())
    assert {key: written[key] for key in told} == told
    assert written.keys() - told.keys() == {"documents", "curve"}
    assert (told["variant"], told["seed"], told["configuration"]["tokens"]) == ("K=V GQA-2", 3, 500)
    assert told["cache"]["bytes_used"] == told["cache"]["bytes_formula"] == 20 * 2 * 2 * 6 * 4
    assert {path.name for path in out.iterdir()} == {"model", "metrics.jsonl", "record.json", "settings.json"}
    assert len((out / "metrics.jsonl").read_text().splitlines()) == -(-500 // (3 * CONTEXT))


def test_the_default_folder_is_named_after_variant_and_seed(capsys, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = run(capsys, *arguments(texts, variant="K=V MQA", tokens="1"))
    assert outcome.code == 0
    assert outcome.out.split()[-1] == "runs/train/K=V_MQA_seed0"
    assert (tmp_path / "runs/train/K=V_MQA_seed0/record.json").is_file()


def test_a_dataset_and_tokens_of_its_own(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    source = f"dataset:{parquet(tmp_path / 'texts')}"
    own = (f"data.column={COLUMN}", "data.tokenizer=bpe-277", "data.held_out=0.2", "data.context=11")
    settings = (*SIZES[:3], *QUICK, *own)
    outcome = run(capsys, *arguments(source, tmp_path / "out", settings), "--json")
    told = json.loads(outcome.out)
    assert told["configuration"]["data"]["source"] == source
    assert told["configuration"]["model_config"]["vocab_size"] == 277
    assert told["validation"]["tokens"] < told["validation"]["bytes"]
    message = refused(capsys, *arguments(source, tmp_path / "no", SIZES[:3]))
    assert message.endswith(f"has no column 'text': name one with data.column; there are {COLUMN}, n")


def test_an_empty_folder_will_do_even_the_working_one(capsys, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments(texts, ".", tokens="1")).code == 0
    assert (tmp_path / "record.json").is_file()


def test_a_folder_or_file_in_use_is_refused_and_left_alone(capsys, texts, tmp_path):
    file = tmp_path / "precious"
    file.write_text("mine")
    for out in (tmp_path, file):
        assert refused(capsys, *arguments(texts, out)) == (
            f"{out} exists, and is no interrupted run of these settings: choose another folder with --out, or remove it"
        )
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.layers", "--set 'model.layers': write KEY=VALUE with a key of data, model, training, sample, such as"),
        ("=3", "--set '=3': write KEY=VALUE"),
        ("layers=3", "--set 'layers=3': write KEY=VALUE with a key of data, model, training, sample"),
        ("seeds=[1]", "--set 'seeds=[1]': write KEY=VALUE"),
        ("variants.0=K=V", "--set 'variants.0=K=V': write KEY=VALUE"),
        ("model.=3", "--set 'model.=3': write KEY=VALUE"),
        ("model.layers=[", "--set 'model.layers=[': the value is not YAML"),
        ("model.layers=many", "model.layers: Input should be a valid integer"),
        ("model.layer=3", "unknown key 'model.layer': did you mean 'layers'? The keys here are preset, layers"),
        ("model.width=26", "model.width: width 26 is not a multiple of 4 heads"),
        ("training.learning_rate=0", "training.learning_rate: Input should be greater than 0"),
        ("data.context.x=3", "data.context: Input should be a valid integer"),
    ],
)
def test_a_bad_setting(capsys, texts, tmp_path, setting, message):
    assert refused(capsys, *arguments(texts, tmp_path / "out", [setting])).startswith(message)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("variant", "K=W", "variants.0: unknown variant 'K=W': did you mean 'K=V'?"),
        ("variant", "GQA-3", "variants.0: GQA-3: 4 query heads cannot be shared out evenly among 3"),
        ("tokens", "many", "cannot read 'many' as a number of tokens: write 1200000, 1_200_000, 1.2M, 300K or 2B"),
        ("tokens", "0", "tokens: Input should be greater than or equal to 1"),
        ("seed", "-1", "seeds.0: Input should be greater than or equal to 0"),
        ("preset", "7B", "model.preset: unknown preset '7B': choose one of tiny, 300M, 1.2B"),
        ("data", "no/such/texts", "There is no file or folder 'no/such/texts'"),
    ],
)
def test_a_bad_option(capsys, texts, tmp_path, option, value, message):
    outcome = refused(capsys, *arguments(texts, tmp_path / "out", **{option: value}))
    assert outcome.startswith(message)
    assert not (tmp_path / "out").exists()


def test_too_little_text(capsys, tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("short")
    message = refused(capsys, *arguments(tmp_path, tmp_path / "out"))
    assert message.startswith("Too little text: ")
    assert not (tmp_path / "out").exists()
