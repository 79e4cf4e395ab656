"""`twofold explain --sharing`, and `--show` of the record that it makes."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import run
from test_cli_explain import LAYERS, explained, models, refused, text  # noqa: F401  (fixtures)
from twofold.explain.record import read_explanations


@pytest.fixture(scope="module")
def shared(models, text, tmp_path_factory):  # noqa: F811
    """A record with measured losses, and whether the model's file was touched."""
    from twofold.explain.explain import explain
    from twofold.explain.reading import Text

    path = models / "QKV" / "model" / "model.safetensors"
    before = load_file(path)
    made = explain(str(models / "QKV"), text=Text("story.txt", text.read_bytes(), 997, 50), sharing=True)
    assert all(torch.equal(value, before[name]) for name, value in load_file(path).items())
    folder = tmp_path_factory.mktemp("shared")
    (folder / "explain.json").write_text(made.model_dump_json())
    return folder / "explain.json"


def test_the_cost_of_sharing_is_measured_in_each_layer(shared):
    (found,) = read_explanations(shared)
    assert (found.sharing.fitted_tokens, found.sharing.scored_tokens) == (9 * 50, 10 * 49)
    for layer in found.layers:
        assert layer.sharing["dims"] == 40
        assert 0 < layer.sharing["joint_predicted"] < layer.sharing["joint_predicted_weights"] < 1
        assert layer.sharing["joint_predicted_weights"] == pytest.approx(1 - layer.rank["joint_kv_kept"], abs=1e-6)
        assert 0 < layer.sharing["value_from_key_predicted"] < 1
        assert abs(layer.sharing["joint_loss"]) < abs(layer.sharing["value_from_key_loss"]) != 0
        assert len(layer.heads["sharing.value_from_key_predicted"]) == 4
        assert layer.rank["k_activations_random"] > 1
    assert {one.layers for one in found.sharing.correlations} == {LAYERS}
    assert {one.spearman for one in found.sharing.correlations} == {None}


def test_a_record_is_shown_without_measuring(capsys, shared):
    shown = run(capsys, "explain", "--show", str(shared))
    assert (shown.code, shown.err) == (0, "")
    assert "Sharing was fitted on 450 tokens; on 490 others" in shown.out
    made = run(capsys, "explain", "--show", str(shared), "--markdown").out
    tables = [table.splitlines() for table in made.strip().split("\n\n")]
    assert [len(table) for table in tables] == [LAYERS + 3, LAYERS + 3, 7]
    assert all(line.count("|") == table[0].count("|") for table in tables for line in table)
    (found,) = read_explanations(shared)
    loss = f"{found.layers[1].sharing['value_from_key_loss']:+.4f}".replace("-", "−")
    assert tables[1][3].endswith(f"| {loss} |")
    assert json.loads(run(capsys, "explain", "--show", str(shared), "--json").out)["sharing"] is not None


def test_without_the_option_costs_are_foretold_alone(capsys, models, text):  # noqa: F811
    found = explained(capsys, models / "llama", "--text", text, "--no-patterns", "--layers", "1")
    assert found["sharing"] is None
    assert {"joint_predicted", "value_from_key_predicted"} <= set(found["layers"][0]["sharing"])
    assert not [name for name in found["layers"][0]["sharing"] if "loss" in name]
    by_weights = explained(capsys, models / "llama")["layers"][1]["sharing"]
    assert set(by_weights) == {"dims", "joint_predicted_weights", "value_from_key_predicted_weights"}


def test_layers_that_share_already_say_so(capsys, models, text):  # noqa: F811
    found = explained(capsys, models / "K=V", "--text", text, "--no-patterns", "--sharing")
    assert all(layer["sharing"] == {} for layer in found["layers"])
    assert "No cost of sharing in any layer: keys and values are one vector already." in found["notes"]


def test_mistakes_are_told_in_a_line(capsys, models, text, shared, tmp_path):  # noqa: F811
    llama = models / "llama"
    assert "give one with --text" in refused(capsys, llama, "--sharing")
    assert "--context counts" in refused(capsys, llama, "--context", 9)
    assert "--context must be at least 2" in refused(capsys, llama, "--text", text, "--context", 1)
    assert "give more text" in refused(capsys, llama, "--text", text, "--tokens", 2, "--sharing")
    assert "--show prints" in refused(capsys, llama, "--show", shared)
    assert "give a model" in refused(capsys)
    assert "not JSON" in refused(capsys, "--show", text)
    for words in (["--text", text], ["--sharing"], ["--layers", "1"], ["--task", "own"], ["--seed", 3]):
        assert f"--show measures nothing: leave {words[0]} out" in refused(capsys, "--show", shared, *words)


def test_a_record_is_written_with_its_page(capsys, shared, tmp_path):
    shown = run(capsys, "explain", "--show", str(shared), "--out", str(tmp_path / "new"))
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.endswith(f"{tmp_path / 'new' / 'explain.html'}\n")
    assert read_explanations(tmp_path / "new" / "explain.json") == read_explanations(shared)
    assert (tmp_path / "new" / "explain.html").read_text().endswith("</html>\n")


def broken(folder, change):
    """The folder of a Llama with changed weights."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("letter", ["k", "v"])
def test_weights_that_are_no_numbers_are_named(capsys, models, tmp_path, letter):  # noqa: F811
    def change(weights):
        weights[f"model.layers.1.self_attn.{letter}_proj.weight"][3, 5] = float("inf")

    folder = broken(shutil.copytree(models / "llama", tmp_path / "llama"), change)
    named = {"k": "key", "v": "value"}[letter]
    assert f"weights of layer 1 hold NaN or infinity: those of {named};" in refused(capsys, folder)


def test_a_loss_that_is_no_number_is_told_before_the_work(capsys, models, text, tmp_path, monkeypatch):  # noqa: F811
    def change(weights):
        weights[f"model.layers.{LAYERS - 1}.mlp.up_proj.weight"][:] = float("nan")

    folder = broken(shutil.copytree(models / "llama", tmp_path / "llama"), change)
    monkeypatch.setattr("twofold.explain.explain._activations", None)
    assert "the model's loss on the text is nan" in refused(capsys, folder, "--text", text, "--sharing")


def test_layers_that_are_given_no_numbers_are_named(capsys, models, text, tmp_path):  # noqa: F811
    def change(weights):
        weights["model.layers.0.mlp.up_proj.weight"][:] = float("nan")

    folder = broken(shutil.copytree(models / "llama", tmp_path / "llama"), change)
    assert "layer 1 is given NaN or infinity on these tokens" in refused(capsys, folder, "--text", text)
