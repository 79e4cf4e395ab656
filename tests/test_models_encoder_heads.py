"""What the encoder answers: a class for each position, one for the whole input, or one of the positions."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from small_encoders import BATCH, CLASSES, HEADS, READS, T, encoder_of, inputs, labels, positions_of
from twofold.models.encoder import TwofoldForMemberChoice
from twofold.models.encoder_build import HEADS as ANSWERS

EACH = [(reads, head) for reads in READS for head in ANSWERS]
PADDED = [(reads, head) for reads, head in EACH if reads != "images"]
LENGTHS = (T, 4, 1)


def padding(side="right"):
    """1 where a position is one of the first `LENGTHS`, or of the last."""
    mask = (torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None]).long()
    return mask.flip(1) if side == "left" else mask


def surprise(logits, label):
    """−log of the label's share, number by number."""
    return -(logits[label] - logits.exp().sum().log())


@pytest.mark.parametrize(("reads", "head"), EACH)
def test_logits_and_loss_are_what_they_say(reads, head):
    model = encoder_of(reads, head, "Q=K=V +")
    given, wanted = inputs(reads), labels(reads, head)
    if head == "positions":
        wanted[0, 3:] = -100
    out = model(**given, labels=wanted)
    hidden = model.model(**given).last_hidden_state
    if head == "whole":
        expected = model.classifier(sum(hidden[:, t] for t in range(positions_of(reads))) / positions_of(reads))
    else:
        expected = model.classifier(hidden)
        expected = expected[..., 0] if head == "member" else expected
    sizes = {"whole": (CLASSES,), "member": (positions_of(reads),), "positions": (positions_of(reads), CLASSES)}
    assert out.logits.shape == (BATCH, *sizes[head])
    torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-10)
    rows, asked = out.logits.flatten(0, -2), wanted.flatten()
    surprises = [surprise(row, label) for row, label in zip(rows, asked, strict=True) if label >= 0]
    assert out.loss.item() == pytest.approx(torch.stack(surprises).mean().item(), rel=1e-5)
    summed = model(**given, labels=wanted, num_items_in_batch=13).loss  # as the Trainer asks for
    assert summed.item() == pytest.approx(torch.stack(surprises).sum().item() / 13, rel=1e-5)
    assert model(**given).loss is None


@pytest.mark.parametrize("variant", ["QKV", "Q=K +", "MQA +relative"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("reads", "head"), PADDED)
def test_padding_changes_no_answer(reads, head, side, variant):
    for positions in ("sinusoidal", "none"):
        model = encoder_of(reads, head, variant, positions=positions)
        (name, given), mask = *inputs(reads).items(), padding(side)
        together = model(**{name: given}, attention_mask=mask).logits
        for row in range(BATCH):
            real = mask[row].bool()
            alone = model(**{name: given[row : row + 1, real]}).logits[0]
            ours = together[row] if head == "whole" else together[row, real]
            torch.testing.assert_close(ours, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_is_never_the_member_that_is_meant(attention):
    model = encoder_of("features", "member", "K=V", attention)
    given, mask, wanted = inputs("features"), padding(), torch.tensor([7, 2, 0])
    out = model(**given, attention_mask=mask, labels=wanted)
    assert not out.logits.softmax(-1)[mask == 0].any()
    surprises = [surprise(out.logits[row, :length], wanted[row]) for row, length in enumerate(LENGTHS)]
    assert out.loss.item() == pytest.approx(torch.stack(surprises).mean().item(), rel=1e-5)
    assert surprises[2] == 0  # there is one member to choose from
    out.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("variant", ["QKV", "Q=K +", "K=V GQA-2"])
@pytest.mark.parametrize(("reads", "head"), EACH)
def test_attention_weights_sum_to_one_and_padding_gets_none(reads, head, variant):
    model = encoder_of(reads, head, variant, "eager")
    length, mask = positions_of(reads), None if reads == "images" else padding()
    weights = model(**inputs(reads), attention_mask=mask, output_attentions=True).attentions
    assert [tuple(layer.shape) for layer in weights] == [(BATCH, HEADS, length, length)] * 2
    for layer in weights:
        torch.testing.assert_close(layer.sum(-1), torch.ones(BATCH, HEADS, length, dtype=torch.float64))
        if mask is not None:
            seen = mask[:, None, None].bool().expand_as(layer)
            assert not layer[~seen].any()
            assert layer[seen].all()


def test_attention_weights_are_refused_where_nobody_has_them():
    model = encoder_of("features", "member")
    with pytest.raises(ValueError, match="'sdpa' gives no attention weights: set it to eager"):
        model(**inputs("features"), output_attentions=True)


@pytest.mark.parametrize(("variant", "reads"), [("QKV", "tokens"), ("K=V", "features"), ("Q=K +temperature", "images")])
def test_without_padding_no_mask_is_made(monkeypatch, variant, reads):
    """So that torch takes its fused kernel."""
    masks = []
    fused = F.scaled_dot_product_attention

    def spied(*args, attn_mask=None, **kwargs):
        masks.append(attn_mask)
        return fused(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spied)
    model = encoder_of(reads, "whole", variant)
    given = inputs(reads)
    model(**given)
    model(**given, attention_mask=torch.ones(BATCH, positions_of(reads)))
    assert masks == [None] * 4
    model(**given, attention_mask=torch.ones(BATCH, positions_of(reads)).triu(1 - BATCH + 1))
    assert all(mask is not None for mask in masks[4:])
    assert len(masks) == 6


@pytest.mark.parametrize(("reads", "head"), EACH)
def test_it_is_saved_and_found_by_the_auto_classes(reads, head, tmp_path):
    model = encoder_of(reads, head, "Q=K +", positions="learned", norm_order="pre")
    model.save_pretrained(tmp_path)
    known = {
        "positions": (AutoModelForTokenClassification,),
        "whole": (AutoModelForSequenceClassification, AutoModelForImageClassification),
        "member": (TwofoldForMemberChoice,),
    }
    given = inputs(reads)
    for auto in known[head]:
        loaded = auto.from_pretrained(tmp_path, dtype=torch.float64)
        assert type(loaded) is type(model)
        assert loaded.config.reads == reads
        torch.testing.assert_close(loaded(**given).logits, model(**given).logits, rtol=0, atol=1e-12)


def test_the_odd_member_of_a_set_is_found():
    """It cannot be told from a member alone: what it differs in differs from set to set."""
    torch.manual_seed(2)
    model = encoder_of("features", "member", "Q=K", positions="none", hidden_size=24, head_dim=4).float().train()
    model.init_weights()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        usual, odd = torch.randn(2, 64, 1, 5).sign()
        wanted = torch.randint(6, (64,))
        members = torch.where(F.one_hot(wanted, 6).bool()[..., None], odd, usual)
        out = model(features=members + 0.1 * torch.randn(64, 6, 5), labels=wanted)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    differs = (usual != odd).any(-1)[:, 0]
    assert (out.logits.argmax(-1) == wanted)[differs].float().mean() > 0.7  # chance is 1/6
