"""`twofold export`: the folder, what is printed, the tokenizer that comes along, and refusals in one line."""

import contextlib
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from command_line import run
from small_models import small_model
from twofold.cli.export_tables import grid, read_record
from twofold.cli.grids import markdown
from twofold.data.byte_tokens import END, VOCABULARY, byte_tokenizer
from twofold.models.load import load_model

TEXT = "def main():\n    return 'é' <|end|>"


def saved(folder, variant, *, tokenizer=True, **others):
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    model = small_model(variant, vocab_size=VOCABULARY, hidden_size=12, **ends, **others).float()
    model.save_pretrained(folder / "model")
    if tokenizer:
        byte_tokenizer().save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def decoupled(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("run"), "K=V GQA-2 decoupled", rotary="partial", rotary_dims=4)


def test_deepseek_is_written_checked_and_usable(capsys, decoupled, tmp_path):
    out = tmp_path / "deep" / "seek"
    done = run(capsys, "export", str(decoupled), "--format", "deepseek", "--out", str(out))
    assert done.code == 0, done.err
    assert "K=V GQA-2 decoupled as deepseek_v3" in done.out
    assert "cache: 24 numbers per token and layer here, 24 there\n" in done.out
    assert "16 greedy tokens equal; caches measured: 24 and 24 numbers" in done.out
    assert [path.name for path in out.parent.iterdir()] == ["seek"]
    record = json.loads((out / "export.json").read_text())
    assert record["check"]["greedy_equal"] is True
    assert record["check"]["max_logit_difference"] < 1e-4
    assert set(record["environment"]) >= {"twofold", "transformers", "torch"}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    ours = load_model(decoupled).eval()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert ids.tolist() == [byte_tokenizer()(TEXT).input_ids]
    assert model.generation_config.eos_token_id == ours.generation_config.eos_token_id == END
    written = [each.generate(ids, max_new_tokens=9, do_sample=False) for each in (ours, model)]
    assert torch.equal(*written)


def test_padded_json_is_the_record(capsys, decoupled, tmp_path):
    out = tmp_path / "padded"
    done = run(capsys, "export", str(decoupled), "--format", "deepseek", "--pad", "256+64", "--out", str(out), "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record == json.loads((out / "export.json").read_text())
    assert (record["pad"], record["tied"], record["target_cache_numbers"]) == ("256+64", False, 320)
    assert (record["keeps_saving"], record["check"]["target_cache_numbers"]) == (False, 320)


def test_llama_says_that_it_saves_nothing(capsys, tmp_path):
    """A model of bytes that was saved without a tokenizer gets that of bytes."""
    folder = saved(tmp_path / "run", "K=V MQA on_read", tokenizer=False)
    done = run(
        capsys, "export", str(folder), "--format", "llama", "--untied", "--no-check", "--out", str(tmp_path / "out")
    )
    assert done.code == 0, done.err
    assert "not checked" in done.out
    assert "20 there: more than the model itself" in done.out
    assert "This export saves no memory" in done.out
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(TEXT).input_ids == byte_tokenizer()(TEXT).input_ids
    assert not AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.tie_word_embeddings


def test_refusals_are_one_line(capsys, decoupled, tmp_path):
    out = str(tmp_path / "out")
    refused = run(capsys, "export", str(decoupled), "--format", "llama", "--out", out)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("twofold export: K=V GQA-2 decoupled cannot be exported as llama without loss")
    assert refused.err.count("\n") == 1
    unknown = run(capsys, "export", str(decoupled), "--format", "onnx", "--out", out)
    assert "unknown format 'onnx'" in unknown.err
    missing = run(capsys, "export", str(tmp_path / "nothing"), "--format", "llama", "--out", out)
    assert "is not a folder" in missing.err
    assert not (tmp_path / "out").exists()


def test_records_are_shown_again(capsys, decoupled, tmp_path):
    out = tmp_path / "out"
    asked = ("export", str(decoupled), "--format", "deepseek", "--out", str(out))
    assert run(capsys, *asked).code == 0
    unchecked = tmp_path / "unchecked"
    assert run(capsys, *asked[:-1], str(unchecked), "--no-check").code == 0
    records = [str(folder / "export.json") for folder in (out, unchecked)]
    shown = run(capsys, "export", "--show", records[0], "--show", records[1], "--markdown")
    assert shown.code == 0, shown.err
    _, _, checked, plain, *rest = shown.out.splitlines()
    assert checked.startswith("| K=V GQA-2 decoupled | deepseek_v3 | float32 | transformers | ")
    assert checked.endswith("| 16 equal | 24 | 24 |")
    assert plain.endswith("| – | – | – | – | 24 | 24 |")
    assert f"twofold {' '.join(asked)}; transformers" in "\n".join(rest)
    (printed,) = json.loads(run(capsys, "export", "--show", records[0], "--json").out)
    assert printed == json.loads((out / "export.json").read_text())
    assert "deepseek_v3" in run(capsys, "export", "--show", records[0]).out
    assert run(capsys, "export", "--show", str(out)).out == run(capsys, "export", "--show", records[0]).out


def test_damaged_records_are_refused_in_a_line_and_old_ones_shown(capsys, decoupled, tmp_path):
    out = tmp_path / "out"
    assert run(capsys, "export", str(decoupled), "--format", "deepseek", "--out", str(out)).code == 0
    whole, file = json.loads((out / "export.json").read_text()), tmp_path / "export.json"
    old = {key: value for key, value in whole.items() if key != "command"} | {"check": dict(whole["check"])}
    del old["check"]["engine_log"]
    file.write_text(json.dumps(old))
    assert "from Python" in run(capsys, "export", "--show", str(file)).out
    for key in ("variant", "model_type", "dtype", "versions", "check", "cache_numbers"):
        for damage in (-1, [], {}, [{}]):
            file.write_text(json.dumps(whole | {key: damage}))
            with contextlib.suppress(ValueError):
                assert markdown(grid([read_record(file)]))
    file.write_text(json.dumps(whole | {"versions": None}))
    for asked in ((), ("--markdown",), ("--json",)):
        done = run(capsys, "export", "--show", str(file), *asked)
        assert (done.code, done.err.count("\n"), "no record of an export" in done.err) == (2, 1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs/mine", "--format", "gguf"), "--out missing"),
        ((), "MODEL and --format and --out missing"),
        (("runs/mine", "--show", "x.json"), "exports nothing"),
        (("runs/mine", "--markdown"), "--markdown is of --show"),
        (("--show", "nowhere.json"), "No such file"),
        (("--show", "EMPTY"), "is no record of an export"),
    ],
)
def test_what_does_not_go_together(arguments, message, capsys, tmp_path):
    (tmp_path / "empty.json").write_text("[]")
    done = run(capsys, "export", *(str(tmp_path / "empty.json") if word == "EMPTY" else word for word in arguments))
    assert done.code in (1, 2)
    assert message in done.err
    assert done.err.count("\n") == 1
