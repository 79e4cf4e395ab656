"""The two score paths: a decode step reads each row once for all query heads of its group; they agree on outputs."""

import pytest
import torch
import torch.nn.functional as F

from small_models import random_ids, small_model
from twofold.attention import scores
from twofold.attention.scores import describe_path, keys_and_values
from twofold.cache.kept import KeptRows
from twofold.kernels.decode import describe
from twofold.variants.layout import RowLayout

B, S, HEADS, D = 2, 11, 6, 10


@pytest.mark.parametrize("variant", ["QKV", "K=V", "GQA-2", "K=V MQA"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_decode_step_lays_a_groups_heads_out_as_query_positions(variant, padded, monkeypatch):
    seen = []

    def spy(query, key, value, **options):
        seen.append((tuple(query.shape), tuple(key.shape), options.get("enable_gqa", False)))
        return plain(query, key, value, **options)

    plain = F.scaled_dot_product_attention
    monkeypatch.setattr(scores.F, "scaled_dot_product_attention", spy)
    model = small_model(variant)
    kv_heads = model.config.num_key_value_heads
    mask = torch.ones(B, S, dtype=torch.long)
    if padded:
        mask[0, :3] = 0
    ids = random_ids(B, S)
    with torch.no_grad():
        cache = model(ids[:, :-1], attention_mask=mask[:, :-1]).cache
        seen.clear()
        step = model(ids[:, -1:], attention_mask=mask, cache=cache).logits
        decoded = list(seen)
        full = model(ids, attention_mask=mask, use_cache=False).logits[:, -1:]
    assert decoded == [((B, kv_heads, HEADS // kv_heads, D), (B, kv_heads, S, D), False)] * len(cache.layers)
    assert (step - full).abs().max() < 1e-9


def test_keys_and_values_are_views():
    rows = torch.randn(B, 3, S, 2 * D)
    key, value = keys_and_values(RowLayout.separate(D), KeptRows(rows))
    assert key.data_ptr() == rows.data_ptr()
    assert torch.equal(torch.cat([key, value], dim=-1), rows)
    shared_key, shared_value = keys_and_values(RowLayout.shared(2 * D), KeptRows(rows))
    assert shared_key.data_ptr() == shared_value.data_ptr() == rows.data_ptr()


def test_the_path_is_described():
    assert describe() in describe_path("cpu")
    assert "SDPA on cuda" in describe_path("cuda")
