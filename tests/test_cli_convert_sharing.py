"""`twofold convert --to VARIANT`: folders that other verbs open, records that are printed again, one-line refusals."""

import json

import pytest
import torch

from command_line import run
from small_checkpoints import checkpoint
from small_models import small_model
from tiny_study import write_texts
from twofold.cli.convert_sharing import Options
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer
from twofold.models.load import load_model
from twofold.variants.notation import parse

FIT = ("--tokens", "700", "--context", "53")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A Llama over bytes as transformers saves it, and two texts."""
    folder = tmp_path_factory.mktemp("sharing")
    checkpoint("llama", vocab_size=VOCABULARY).save_pretrained(folder / "llama")
    byte_tokenizer().save_pretrained(folder / "llama")
    write_texts(folder / "texts")
    write_texts(folder / "others", seed=1)
    return folder


def arguments(places, out, *others, to="MLA on_read"):
    return ("convert", str(places / "llama"), "--to", to, "--text", str(places / "texts"), "--out", str(out), *others)


def test_a_folder_that_other_verbs_open(capsys, places, tmp_path):
    out = tmp_path / "new" / "half"
    done = run(capsys, *arguments(places, out, *FIT, "--test", str(places / "others"), "--json"))
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert json.loads((out / "conversion.json").read_text()) == record
    assert (record["to"], record["method"], record["variant"]) == (
        "GQA-2 MLA on_read",
        "latent-all",
        "GQA-2 MLA on_read",
    )
    assert record["cache_share"] == 0.5
    assert record["text"]["windows"] == [14, 53]
    assert record["tokens"] == 742
    assert record["command"].startswith("twofold convert ")
    assert 1 < record["perplexity"]["before"] < 1e6
    assert load_model(out).config.variant == record["variant"]
    assert (out / "tokenizer_config.json").is_file()
    for verb in (
        ("generate", str(out), "ab", "--tokens", "3"),
        ("evaluate", str(out), "--data", str(places / "others")),
    ):
        other = run(capsys, *verb, "--json")
        assert other.code == 0, other.err
    scored = json.loads(other.out)
    assert scored["tokens"] == record["perplexity"]["tokens"]
    for shown in (out, out / "conversion.json"):
        again = run(capsys, "convert", "--show", str(shown), "--json")
        assert json.loads(again.out) == record


def test_what_is_printed_is_printed_again(capsys, places, tmp_path):
    out = tmp_path / "half [red]\nof it"
    done = run(capsys, *arguments(places, out, *FIT, "--cache", "0.6", "--test", str(places / "others")))
    assert done.code == 0, done.err
    again = run(capsys, "convert", "--show", str(out))
    assert again.code == 0
    assert done.out.startswith(again.out)
    assert done.out.removeprefix(again.out) == f"{out} is written.\n"
    record = json.loads((out / "conversion.json").read_text())
    for told in (
        "output lost",
        "refitted",
        f"{record['perplexity']['after']:,.2f} now",
        f"({record['cache_share']:.1%})",
    ):
        assert told in again.out
    for layer in record["layers"]:
        assert f"{layer['output_lost']:.4f}" in again.out
    assert record["cache_share"] <= 0.6


def test_a_folder_of_twofold_and_every_option(capsys, places, tmp_path):
    assert run(capsys, "convert", str(places / "llama"), "--out", str(tmp_path / "ours"), "--no-check").code == 0
    how = ("--layers", "0,2", "--method", "latent-group", "--groups", "2", "--latent", "6", "--plain", "--no-refit")
    given = ("convert", str(tmp_path / "ours"), "--to", "mla ON_READ", "--text", str(places / "texts"), *FIT, *how)
    done = run(capsys, *given, "--text", str(places / "others"), "--out", str(tmp_path / "some"))
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "some" / "conversion.json").read_text())
    assert record["variant"] == "2 × GQA-2 MLA on_read, 1 × GQA-2"
    assert [(one["layer"], one["cache_numbers"]) for one in record["layers"]] == [(0, 6), (2, 6)]
    assert record["refit"] is False
    assert record["perplexity"] is None
    assert "–" in done.out
    assert len(record["text"]["sources"]) == 2
    apart = run(capsys, *arguments(places, tmp_path / "apart", *FIT, "--rotary-dims", "2", to="MLA"))
    assert apart.code == 0, apart.err
    assert len(json.loads((tmp_path / "apart" / "conversion.json").read_text())["rotary_pairs"]) == 1


def test_progress_goes_to_standard_error_alone(capsys, places, tmp_path, monkeypatch):
    from twofold.cli import progress

    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    done = run(capsys, *arguments(places, tmp_path / "half", *FIT, "--json", to="MLA"))
    assert json.loads(done.out)["rotary_pairs"]
    for stage in ("reading", "measuring", "fitting"):
        assert stage in done.err
        assert stage not in done.out


def test_options_that_say_something_are_named():
    assert Options().given == []
    told = Options(text=("a",), refit=False, weighed=False, spaced=False, rotary_dims=4, cache=0.0)
    assert told.given == ["--text", "--cache", "--rotary-dims", "--any-pairs", "--no-refit", "--plain"]
    assert told.sharing(parse("MLA")).spaced is False


def test_a_perplexity_that_is_no_number_is_told_before_anything_is_fitted(capsys, places, tmp_path):
    sharp = checkpoint("llama", vocab_size=VOCABULARY)
    with torch.no_grad():
        sharp.get_output_embeddings().weight.mul_(1e6)
    sharp.save_pretrained(tmp_path / "sharp")
    byte_tokenizer().save_pretrained(tmp_path / "sharp")
    given = ("--text", str(places / "texts"), *FIT, "--test", str(places / "others"), "--out", str(tmp_path / "out"))
    done = run(capsys, "convert", str(tmp_path / "sharp"), "--to", "MLA on_read", *given)
    assert (done.code, (tmp_path / "out").exists()) == (2, False)
    assert "sharp has no finite perplexity on" in done.err
    assert "fitting" not in done.err


def refused(places, out):
    """Arguments that are wrong, and what is told."""
    model, texts = str(places / "llama"), str(places / "texts")
    to = ("convert", model, "--out", str(out), "--to")
    given = (*to, "MLA on_read", "--text", texts)
    return {
        "no text": ((*to, "K=V on_read"), "sharing as K=V on_read is fitted to a text: name one with --text"),
        "misspelt family": (
            (*to, "lama", "--text", texts),
            "'lama' is no variant, and no family: did you mean 'llama'?",
        ),
        "misspelt family alone": ((*to, "Mistal"), "did you mean 'mistral'?"),
        "misspelt variant": (
            (*to, "MLA on_reed", "--text", texts),
            "unknown variant 'MLA on_reed': did you mean 'MLA on_read'?",
        ),
        "other model": ((*to, "gemma2", "--text", texts), "a 'gemma2' model does not convert: its blocks have norms"),
        "empty": ((*to, ""), "unknown variant ''"),
        "hostile": ((*to, "[red]\n\x1b[31mMLA", "--text", texts), "unknown variant '[red]\\n\\x1b[31mMLA'"),
        "no variant": (
            ("convert", model, "--out", str(out), "--cache", "0.5"),
            "--cache: for sharing, which takes a variant",
        ),
        "cache 0": (("convert", model, "--out", str(out), "--cache", "0"), "--cache: for sharing"),
        "family": ((*to, "llama", "--text", texts, "--groups", "2"), "--text, --groups: for sharing"),
        "no-refit": (("convert", model, "--out", str(out), "--no-refit"), "--no-refit: for sharing"),
        "both": ((*given, "--layers", "1", "--cache", "0.5"), "layers and a share of the cache are both given"),
        "layers": ((*given, "--layers", "3"), "different numbers from 0 to 2, not [3]"),
        "layers unread": ((*given, "--layers", "a"), "cannot read --layers 'a'"),
        "share": ((*given, "--cache", "1.5"), "lies between 0 and 1, and is not 1.5"),
        "small share": ((*given, "--cache", "0.01"), "keeps at least 1 of the 16 numbers of a layer"),
        "method": (
            (*given, "--method", "mean"),
            "is made by latent-all or latent-group or latent-head, and not by 'mean'",
        ),
        "tokens": ((*given, "--tokens", "many"), "cannot read 'many' as a number of tokens"),
        "few tokens": ((*given, "--tokens", "20"), "and 20 tokens are to be fitted to: that takes 2 windows"),
        "nothing there": ((*to, "MLA", "--text", str(places / "none")), "There is no file or folder"),
        "test": ((*given, *FIT, "--test", str(places / "none")), "There is no file or folder"),
        "test fitted": ((*given, *FIT, "--test", f"{texts}/**/*"), "are fitted to as well"),
        "no check": ((*given, "--no-check"), "--no-check: a model that shares is no longer the same function"),
        "no model": (("convert", "--out", str(out)), "MODEL missing: name a model and a new folder, or --show DIR"),
        "nothing": (("convert",), "MODEL and --out missing"),
        "show and more": ((*given, "--show", str(out)), "--show prints what a conversion has written: give it alone"),
        "show nothing": (("convert", "--show", str(places / "texts")), "conversion.json is not there"),
        "out": ((*given[:3], texts, *given[4:]), "is not empty: name a new folder for --out"),
        "latent": ((*given, "--latent", "25"), "a latent of 25 dims in 1 parts does not go"),
        "negative": ((*given, "--latent", "-1"), "greater than or equal to 0"),
    }


NAMES = list(refused(type("", (), {"__truediv__": lambda self, name: name})(), "out"))


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_are_one_line_and_leave_nothing(capsys, places, tmp_path, name):
    given, told = refused(places, tmp_path / "none")[name]
    done = run(capsys, *given)
    assert done.code == 2, done
    assert told in done.err
    assert done.err.count("\n") == 1
    assert done.err.startswith("twofold convert: ")
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


def test_models_that_cannot_share_are_one_line(capsys, places, tmp_path):
    from twofold.models.encoder import TwofoldEncoder
    from twofold.models.encoder_configuration import TwofoldEncoderConfig

    small_model(sinks=True).save_pretrained(tmp_path / "sinking")
    byte_tokenizer().save_pretrained(tmp_path / "sinking")
    checkpoint("llama").save_pretrained(tmp_path / "other")
    byte_tokenizer().save_pretrained(tmp_path / "other")
    checkpoint("llama", vocab_size=VOCABULARY).save_pretrained(tmp_path / "mute")
    TwofoldEncoder(TwofoldEncoderConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2)).save_pretrained(
        tmp_path / "encoder"
    )
    capsys.readouterr()
    for name, told in (
        ("sinking", "has sinks, which the methods do not know"),
        ("other", "and the model those below 61: give the model's own tokenizer"),
        ("mute", "tokenizer"),
        ("encoder", "is an encoder, and sharing is for decoders"),
    ):
        given = arguments(places, tmp_path / "none", *FIT)
        done = run(capsys, given[0], str(tmp_path / name), *given[2:])
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert told in done.err
        assert not list(tmp_path.glob("*none*"))


def test_damaged_records_are_told(capsys, tmp_path):
    for content in ("", "[]", "{}", '{"model": 1}', '{"model": "x", "layers": 3}'):
        (tmp_path / "conversion.json").write_text(content)
        done = run(capsys, "convert", "--show", str(tmp_path))
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "--show takes a folder that" in done.err


def test_a_failure_leaves_nothing(capsys, places, tmp_path, monkeypatch):
    from twofold.conversion import share, source

    def full(*given, **others):
        raise OSError(28, "No space left on device")

    def interrupted(*given, **others):
        raise KeyboardInterrupt

    for module, name, how, code in (
        (source.PreTrainedModel, "save_pretrained", full, 1),
        (source.PreTrainedModel, "save_pretrained", interrupted, 130),
        (share, "_fit", interrupted, 130),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, how)
            done = run(capsys, *arguments(places, tmp_path / "none", *FIT))
        assert (done.code, done.err.count("\n")) == (code, 1), done.err
        assert list(tmp_path.iterdir()) == []


def test_half_precision_stays(capsys, places, tmp_path):
    model = checkpoint("llama", vocab_size=VOCABULARY).bfloat16()
    model.save_pretrained(tmp_path / "half")
    byte_tokenizer().save_pretrained(tmp_path / "half")
    given = arguments(places, tmp_path / "out", *FIT, to="K=V decoupled")
    done = run(capsys, given[0], str(tmp_path / "half"), *given[2:])
    assert done.code == 0, done.err
    assert load_model(tmp_path / "out").dtype == torch.bfloat16
