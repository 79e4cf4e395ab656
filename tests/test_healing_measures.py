"""What is said of each model: bytes as the formula has them, and recall that is what its name says."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from every_variant import KINDS, every_model
from small_healing import CONTEXT, healing_texts, original, settings, teacher
from twofold.data.tokenizer import BYTES
from twofold.evaluation.heldout import evaluate
from twofold.healing.control import weights_hash
from twofold.healing.measures import cache_bytes, measure, recall, variant_label
from twofold.models.decoder import TwofoldForCausalLM

VOCABULARY, LENGTH, SEQUENCES = 101, 13, 5


class Copier(nn.Module):
    """Foretells what followed the token `back` positions before the next: its logit is 3, and others are 0."""

    def __init__(self, back: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCABULARY)
        self.device, self.back = torch.device("cpu"), back

    def forward(self, ids_BT, use_cache):
        following_BT = ids_BT.roll(self.back - 1, dims=1)
        logits_BTV = 3 * torch.nn.functional.one_hot(following_BT, VOCABULARY).float()
        logits_BTV[:, : self.back - 1] = 0.0  # nothing is as far back yet
        return SimpleNamespace(logits=logits_BTV)


def test_a_model_that_looks_back_recalls_all_and_another_nothing():
    found = recall(Copier(LENGTH), LENGTH, SEQUENCES)
    assert (found.accuracy, found.standard_error, found.asked) == (1.0, 0.0, SEQUENCES * (LENGTH - 1))
    likelihood = torch.tensor(3.0).exp() / (torch.tensor(3.0).exp() + VOCABULARY - 1)
    assert found.loss == pytest.approx(-likelihood.log().item(), rel=1e-6)
    assert found.loss_first == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert recall(Copier(LENGTH - 1), LENGTH, SEQUENCES).accuracy == 0.0


def test_only_the_second_copy_is_asked_for():
    """From its second token on: the first copy, and where the second begins, cannot be foretold."""

    class Half(Copier):
        def forward(self, ids_BT, use_cache):
            made = super().forward(ids_BT, use_cache)
            made.logits[:, : LENGTH + (LENGTH - 1) // 2] = 0.0  # says 0 there
            return made

    found = recall(Half(LENGTH), LENGTH, SEQUENCES)
    assert found.accuracy == pytest.approx(0.5, abs=1 / (SEQUENCES * (LENGTH - 1)))  # 0 may be right once


@pytest.mark.parametrize("name", KINDS)
def test_cache_bytes_are_the_formulas(name):
    model = every_model(name).float()
    for tokens in (7, 31):
        assert cache_bytes(model, tokens) == model.config.architecture.cache_bytes(tokens, "float32")


def test_a_family_of_transformers_is_measured_the_same():
    assert cache_bytes(original(), 29) == cache_bytes(teacher(), 29)
    assert (variant_label(original()), variant_label(teacher())) == ("llama", "GQA-2")


def test_layers_that_differ_are_counted():
    model = every_model("K=V on_read, layer_variants ['K=V on_read', 'QKV']")
    assert variant_label(model) == "1 × K=V on_read, 1 × QKV"


def test_held_out_text_is_scored_whole(tmp_path):
    texts = healing_texts(tmp_path)
    found = measure(teacher(), texts.held_out, BYTES, CONTEXT, seed=0)
    wanted = evaluate(teacher(), texts.held_out, CONTEXT)
    assert found.validation.loss == pytest.approx(wanted.loss, rel=1e-6)
    assert found.validation.bytes == sum(document.size for document in texts.held_out)
    assert found.recall.length == CONTEXT // 2


def test_the_sample_is_the_beginning_of_every_document(tmp_path):
    texts = healing_texts(tmp_path, settings(sample=50))
    assert [document.name for document in texts.sample] == [document.name for document in texts.held_out]
    for short, whole in zip(texts.sample, texts.held_out, strict=True):
        assert whole.content.startswith(short.content)
        assert 0 < short.size < whole.size
    assert texts.record.sampled_tokens == pytest.approx(50, abs=3 * len(texts.sample))
    assert healing_texts(tmp_path, settings(sample=10_000)).sample == texts.held_out


def test_a_model_has_one_hash_wherever_it_lies(tmp_path):
    model = teacher()
    model.save_pretrained(tmp_path / "saved")
    again = TwofoldForCausalLM.from_pretrained(tmp_path / "saved")
    assert weights_hash(again) == weights_hash(model)
    with torch.no_grad():
        next(again.parameters())[0] += 1
    assert weights_hash(again) != weights_hash(model)
