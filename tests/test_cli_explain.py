"""`twofold explain` on tiny models of every kind that it opens."""

import json
import random
import shutil
import string
import subprocess
import sys

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from command_line import run
from small_encoders import encoder_of
from twofold.cli.explain import parse_layers
from twofold.data.byte_tokens import byte_tokenizer
from twofold.explain.record import read_explanations
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM

LAYERS, HEADS, POSITIONS = 3, 4, 53
SIZES = {"num_hidden_layers": LAYERS, "hidden_size": 44, "num_attention_heads": HEADS, "head_dim": 10}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a Twofold run for each of two variants, and of a Llama, all over bytes. Read only."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(3)
    for variant in ("QKV", "K=V"):
        config = TwofoldConfig(variant=variant, **SIZES, intermediate_size=17, max_position_embeddings=POSITIONS)
        TwofoldForCausalLM(config).save_pretrained(folder / variant / "model")
    sizes = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 31, "vocab_size": 257}
    LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=POSITIONS)).save_pretrained(folder / "llama")
    byte_tokenizer().save_pretrained(folder / "llama")
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text("".join(random.Random(1).choices(string.ascii_letters + string.digits + " .,;", k=997)))
    return path


def explained(capsys, *words):
    """The record that is printed."""
    outcome = run(capsys, "explain", *map(str, words), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def refused(capsys, *words):
    """The one line on standard error, less the verb."""
    outcome = run(capsys, "explain", *map(str, words))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("twofold explain: ").rstrip("\n")


def test_shared_matrices_are_the_same_in_every_measure(capsys, models, text):
    found = explained(capsys, models / "K=V", "--text", text)
    assert found["variant"] == "K=V"
    for layer in found["layers"]:
        for name in ("cosine_kv", "overlap_kv", "cka_kv", "r2_v_from_k"):
            assert layer["similarity"][name] == pytest.approx(1, abs=1e-6)
            assert layer["similarity"][f"{name}_random"] < 0.99
        assert layer["rank"]["k"] == layer["rank"]["v"]


@pytest.mark.parametrize("name", ["QKV", "QKV/model", "llama"])
def test_separate_matrices_are_no_more_alike_than_random_ones(capsys, models, name):
    found = explained(capsys, models / name)
    assert found["text"] is None
    assert [layer["layer"] for layer in found["layers"]] == list(range(LAYERS))
    for layer in found["layers"]:
        assert layer["similarity"]["overlap_kv"] == pytest.approx(layer["similarity"]["overlap_kv_random"], abs=0.1)
        assert len(layer["heads"]["similarity.overlap_kv"]) in (2, HEADS)
        assert len(layer["heads"]["circuits.ov_copying"]) == HEADS
        assert layer["rank"]["k"] < layer["rank"]["k_most"]


def test_costs_are_the_models_own(capsys, models):
    own, shared, llama = (explained(capsys, models / name)["cost"] for name in ("QKV", "K=V", "llama"))
    assert own["cache_bytes_per_token"] == {"QKV": 2 * HEADS * 10 * LAYERS * 2}
    assert shared["cache_bytes_per_token"] == {"K=V": HEADS * 10 * LAYERS * 2}
    assert own["parameters"] - shared["parameters"] == LAYERS * HEADS * 10 * 44
    assert llama["cache_bytes_per_token"]["needed"] == 2 * 2 * 10 * LAYERS * 2
    model = LlamaForCausalLM.from_pretrained(models / "llama")
    assert llama["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_layers_tokens_and_seed_are_taken(capsys, models, text):
    found = explained(capsys, models / "llama", "--layers", "2,0", "--text", text, "--tokens", 2 * POSITIONS + 5)
    assert [layer["layer"] for layer in found["layers"]] == [0, 2]
    assert (found["text"]["tokens"], found["text"]["window"]) == (2 * POSITIONS, POSITIONS)
    assert "".join(found["text"]["pieces"]) == text.read_text()[:48]
    all_layers = explained(capsys, models / "llama", "--text", text, "--tokens", 2 * POSITIONS + 5)["layers"]
    for layer, same in zip(found["layers"], (all_layers[0], all_layers[2]), strict=True):
        assert layer["similarity"] == pytest.approx(same["similarity"])
        assert layer["attention"] == pytest.approx(same["attention"])
    other = explained(capsys, models / "llama", "--layers", "2", "--seed", "7")["layers"][0]["similarity"]
    assert other["overlap_kv"] == found["layers"][1]["similarity"]["overlap_kv"]
    assert other["overlap_kv_random"] != found["layers"][1]["similarity"]["overlap_kv_random"]


def test_the_folder_gets_the_record_with_maps_and_the_page(capsys, models, text, tmp_path):
    words = ("explain", str(models / "QKV"), "--text", str(text), "--out", str(tmp_path / "new"))
    outcome = run(capsys, *words)
    assert outcome.code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["explain.html", "explain.json"]
    (found,) = read_explanations(tmp_path / "new/explain.json")
    assert {(one.layer, one.head) for one in found.maps} == {(la, h) for la in range(LAYERS) for h in range(HEADS)}
    for one in found.maps:
        assert len(one.weights) == len(found.text.pieces)
        assert all(len(row) <= query + 1 for query, row in enumerate(one.weights))
        assert one.weights[0] == (1,)
        assert all(sum(row) == pytest.approx(1, abs=0.03) for row in one.weights)
    assert found.command == f"twofold {' '.join(words)}"
    assert "QKV" in (tmp_path / "new/explain.html").read_text()


def test_the_table_shows_the_records_numbers_of_two_models(capsys, models):
    shown = run(capsys, "explain", str(models / "QKV"), str(models / "K=V"))
    both = explained(capsys, models / "QKV", models / "K=V")
    assert [one["variant"] for one in both] == ["QKV", "K=V"]
    lines = [line.split() for line in shown.out.splitlines()]
    for label, one in zip("AB", both, strict=True):
        for layer in one["layers"]:
            (row,) = [line for line in lines if line[:2] == [str(layer["layer"]), label]]
            assert f"{layer['similarity']['overlap_kv']:.3f}" in row
            assert f"{layer['rank']['k']:.1f}" in row


def test_patterns_come_with_a_text_or_when_asked_for(capsys, models, text):
    def names(*words):
        return set(explained(capsys, models / "llama", "--layers", "1", *words)["layers"][0]["attention"])

    asked = names("--patterns")
    assert {"repeated_induction", "repeated_induction_chance", "repeated_previous"} <= asked
    assert names() == set()
    assert names("--text", text) > asked
    assert not names("--text", text, "--no-patterns") & asked


def test_encoders_are_read(capsys, text, tmp_path):
    encoder_of("tokens", "positions", "Q=K").float().save_pretrained(tmp_path)
    encoder_of("features", "positions").float().save_pretrained(tmp_path / "features")
    found = explained(capsys, tmp_path)
    assert found["variant"] == "Q=K"
    assert all(layer["similarity"]["cosine_qk"] == pytest.approx(1, abs=1e-6) for layer in found["layers"])
    assert found["cost"]["cache_bytes_per_token"] == {}
    assert "--text out" in refused(capsys, tmp_path / "features", "--text", text)
    assert "holds no tokenizer" in refused(capsys, tmp_path, "--text", text)


@pytest.mark.parametrize(
    ("written", "layers"), [("0", (0,)), ("0,3-5", (0, 3, 4, 5)), ("4-5, 5,1", (1, 4, 5)), ("7-7", (7,))]
)
def test_layers_are_numbers_and_ranges(written, layers):
    assert parse_layers(written) == layers


@pytest.mark.parametrize("written", ["", "a", "3-1", "1,,2", "-1", "1-", "1.5"])
def test_other_layers_are_refused(written):
    with pytest.raises(ValueError, match="such as 0,3-5"):
        parse_layers(written)


def test_mistakes_are_told_in_a_line(capsys, models, text, tmp_path, no_network):
    llama = models / "llama"
    assert "3 layers, from 0 to 2, and no layer 9" in refused(capsys, llama, "--layers", "1,9")
    assert "--tokens counts" in refused(capsys, llama, "--tokens", 9)
    assert "at least 2" in refused(capsys, llama, "--text", text, "--tokens", 1)
    assert "is not a file" in refused(capsys, llama, "--text", tmp_path)
    (tmp_path / "empty.txt").write_text("")
    assert "0 tokens" in refused(capsys, llama, "--text", tmp_path / "empty.txt")
    assert "two to compare, and 3" in refused(capsys, llama, llama, llama)
    assert "there is nothing at" in refused(capsys, tmp_path / "absent" / "model")
    assert "holds no model" in refused(capsys, tmp_path)
    assert "is not a file" in refused(capsys, tmp_path / "absent.gguf")
    seed = refused(capsys, llama, "--seed", 2**64)
    assert "--seed" in seed
    assert str(2**63 - 1) in seed
    assert explained(capsys, llama, "--layers", "0", "--seed", 2**63 - 1)["seed"] == 2**63 - 1


def test_a_typo_beside_a_folder_is_not_looked_for_on_the_hub(capsys, models, no_network, monkeypatch):
    monkeypatch.chdir(models.parent)
    told = refused(capsys, f"{models.name}/lama")
    assert told.startswith(f"the folder {models.name} holds no lama, but K=V, QKV, llama: give")


def test_too_few_tokens_for_r2_are_counted(capsys, models, text):
    few, enough = (
        explained(capsys, models / "llama", "--text", text, "--tokens", count, "--no-patterns") for count in (43, 44)
    )
    told = "R² of keys or values with 20 dims needs 44 tokens, and 43 were read: give more with --tokens."
    assert told in few["notes"]
    assert few["layers"][0]["similarity"]["r2_v_from_k"] is None
    assert told not in enough["notes"]
    assert enough["layers"][0]["similarity"]["r2_v_from_k"] is not None


def test_damaged_and_unknown_models_are_told_in_a_line(capsys, models, tmp_path):
    pickled = shutil.copytree(models / "llama", tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert "pickled weights are not opened" in refused(capsys, pickled)
    cut = shutil.copytree(models / "llama", tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:999])
    assert "cannot be opened" in refused(capsys, cut)
    grown = shutil.copytree(models / "llama", tmp_path / "grown")
    config = json.loads((grown / "config.json").read_text())
    (grown / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS + 1}))
    assert "missing in the weights: model.layers.3" in refused(capsys, grown)
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 7}
    BertModel(BertConfig(**sizes, vocab_size=29)).save_pretrained(tmp_path / "bert")
    assert "bert" in refused(capsys, tmp_path / "bert")


def test_help_needs_no_torch():
    code = (
        "import sys\nfrom twofold.cli.main import main\ntry:\n    main(['explain', '--help'])\n"
        "except SystemExit:\n    sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "MODEL" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("module", ["explain.explain", "explain.reading"])
def test_modules_can_be_the_first_to_be_imported(module):
    assert subprocess.run([sys.executable, "-c", f"import twofold.{module}"], check=False).returncode == 0
