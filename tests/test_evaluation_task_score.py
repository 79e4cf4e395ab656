"""Scores of tasks against counts by hand, and attention maps as numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from twofold.evaluation.attention_maps import AttentionMaps, attention_maps, measures
from twofold.evaluation.task_score import score_task
from twofold.models.encoder_build import encoder_config, encoder_model
from twofold.models.initialise import initialise
from twofold.tasks.task import IGNORED, Examples, Form, Head

FORM = Form("tokens", Head.POSITIONS, classes=3, length=5, vocabulary=7)


class Table(nn.Module):
    """Answers each token with the logits that a table has for it."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)
        self.device = torch.device("cpu")

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.table[input_ids])


def examples(count=11, seed=0):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, (count, 5))
    labels[draw.random((count, 5)) < 0.3] = IGNORED
    labels[0, 0] = 1
    return Examples(draw.integers(0, 7, (count, 5)), labels, draw.integers(0, 2, count))


@pytest.fixture
def model():
    return Table(torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_accuracy_and_loss_are_those_of_a_count_by_hand(model, batch):
    data = examples()
    right, nats, asked, by_part = 0, 0.0, 0, {0: [], 1: []}
    table = model.table.detach().numpy()
    for row, labels, part in zip(data.inputs, data.labels, data.parts, strict=True):
        for token, label in zip(row, labels, strict=True):
            if label != IGNORED:
                logits = table[token]
                asked += 1
                right += logits.argmax() == label
                nats += np.log(np.exp(logits).sum()) - logits[label]
                by_part[part].append(logits.argmax() == label)
    found = score_task(model, FORM, data, part_names=("even", "odd"), batch_size=batch)
    assert (found.answers, found.examples) == (asked, 11)
    assert found.score == right / asked
    assert found.loss == pytest.approx(nats / asked, rel=1e-6)
    assert found.parts == {"even": np.mean(by_part[0]), "odd": np.mean(by_part[1])}


def test_mean_iou_is_that_of_sets(model):
    data = examples(23)
    said = model.table.detach().argmax(-1).numpy()[data.inputs]
    asked = data.labels != IGNORED
    ious = []
    for label in range(3):
        ours = {tuple(i) for i in np.argwhere((said == label) & asked)}
        theirs = {tuple(i) for i in np.argwhere((data.labels == label) & asked)}
        if ours | theirs:
            ious.append(len(ours & theirs) / len(ours | theirs))
    assert score_task(model, FORM, data, "mean IoU").score == pytest.approx(np.mean(ious))


def test_a_perfect_answer_scores_one_whichever_way_it_is_scored():
    table = torch.eye(7)[:, :3] * 9
    labels = np.arange(15).reshape(3, 5) % 3
    data = Examples(labels, labels)
    for metric in ("accuracy", "mean IoU"):
        assert score_task(Table(table), FORM, data, metric).score == 1


def test_measures_of_maps_that_are_known():
    length = 6
    flip = np.eye(length)[::-1]
    maps = AttentionMaps(np.stack([np.full((length, length), 1 / length), flip])[None], np.ones((1, 2)))
    found = measures(maps, np.arange(length)[::-1])
    assert found["answer"] == found["answer_near"] == 1
    assert found["diagonal"] == pytest.approx((1 / 6 + 0) / 2)
    near = np.roll(flip, 1, axis=1)
    found = measures(AttentionMaps(near[None, None], np.ones((1, 1))), np.arange(length)[::-1])
    assert found["answer"] == 0
    assert found["answer_near"] == pytest.approx(5 / 6)  # the last one's neighbour is at the other end


@pytest.mark.parametrize("variant", ["QKV", "Q=K"])
def test_maps_are_means_of_rows_that_sum_to_one(variant):
    config = encoder_config(variant, reads="tokens", classes=3, vocabulary=7, length=5, hidden_size=12)
    encoder = encoder_model(config, "positions")
    initialise(encoder, 0)
    implementation = encoder.config._attn_implementation
    data = Examples(np.random.default_rng(0).integers(0, 7, (9, 5)), np.zeros((9, 5), dtype=np.int64))
    found = attention_maps(encoder, FORM, data, batch_size=4)
    assert encoder.config._attn_implementation == implementation
    np.testing.assert_allclose(found.mean.sum(-1), 1, atol=1e-5)
    whole = attention_maps(encoder, FORM, data, batch_size=100)
    np.testing.assert_allclose(found.mean, whole.mean, atol=1e-6)
    np.testing.assert_allclose(found.symmetry, whole.symmetry, atol=1e-6)
    assert (found.symmetry <= 1 + 1e-9).all()
