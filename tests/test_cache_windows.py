"""Layers that keep a window of tokens: what a step sees, what it reads, what is kept, cropped, adopted and refused."""

from itertools import accumulate, pairwise

import pytest
import torch
from transformers import MistralConfig
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from small_models import uninitialised_is_nan
from twofold.cache.layer import GROWTH, RowLayer
from twofold.cache.row_cache import RowCache, adopt
from twofold.cache.storage import RowStorage
from twofold.variants.layout import RowLayout, cache_bytes

WIDTH, KV_HEADS, WINDOW, BATCH = 5, 3, 11, 3
LAYOUT = RowLayout.shared(WIDTH)
PADS = (0, 4, 13)


def config(window=WINDOW):
    return MistralConfig(sliding_window=window, hidden_size=6, num_attention_heads=1, attn_implementation="sdpa")


def rows(tokens, batch=BATCH):
    return torch.randn(batch, KV_HEADS, tokens, WIDTH, dtype=torch.float64)


def filled(tokens, capacity=None, window=WINDOW):
    layer = RowLayer(LAYOUT, KV_HEADS, capacity, window=window)
    layer.append(rows(tokens))
    return layer


def read(query_BHTD, rows_BGSD, mask):
    """softmax(Q Kᵀ / √D) V where key and value are the row; `mask` [B, 1, T, S] is True for what is seen."""
    scores = query_BHTD @ rows_BGSD.mT / WIDTH**0.5
    return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1).nan_to_num() @ rows_BGSD


def whole(query_BHTD, rows_BGSD, pads=(0,) * BATCH, window=WINDOW):
    """The same over all tokens at once, with a mask from its meaning: a query at p sees p − w + 1 … p."""
    position = torch.arange(query_BHTD.shape[2])
    ago = position[:, None] - position
    sees = (ago >= 0) & (ago < window)
    real = position >= torch.tensor(pads)[:, None]
    return read(query_BHTD, rows_BGSD, sees & real[:, None, None])


CHUNKS = {
    "one prefill, then tokens": lambda length: [length - 5, 1, 1, 1, 1, 1],
    "token by token": lambda length: [1] * length,
    "chunks of 3": lambda length: [3] * (length // 3) + [length % 3] * (length % 3 > 0),
    "chunks of 17": lambda length: [17] * (length // 17) + [length % 17] * (length % 17 > 0),
    "2, then all the rest": lambda length: [2, length - 2],
}


@pytest.mark.parametrize("pads", [(0, 0, 0), PADS], ids=["no padding", "left padding"])
@pytest.mark.parametrize("capacity", [None, 71], ids=["growing", "preallocated"])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW, 67])
def test_a_window_of_rows_reads_as_all_rows_under_a_mask(length, chunks, capacity, pads):
    """Masks are transformers' own, of the sizes that the cache states."""
    query, all_rows = rows(length), rows(length)
    expected = whole(query, all_rows, pads)
    attended = torch.arange(length) >= torch.tensor(pads)[:, None]
    cache = RowCache(1, LAYOUT, KV_HEADS, capacity, windows=[WINDOW])
    for start, stop in pairwise([0, *accumulate(CHUNKS[chunks](length))]):
        mask = create_sliding_window_causal_mask(
            config(), torch.empty(BATCH, stop - start, 1), attended[:, :stop].long(), cache
        )
        with uninitialised_is_nan():
            seen, _ = cache.update(all_rows[:, :, start:stop], None, 0)
        size, offset = stop - max(start - WINDOW + 1, 0), max(start - WINDOW + 1, 0)
        assert torch.equal(seen, all_rows[:, :, offset:stop])
        mask = causal(start, stop, size, offset, attended) if mask is None else mask
        made = read(query[:, :, start:stop], seen, mask)
        real = attended[:, start:stop, None].expand(BATCH, stop - start, WIDTH)[:, None].expand_as(made)
        torch.testing.assert_close(made[real], expected[:, :, start:stop][real], rtol=0, atol=1e-12)
        kept = min(stop, WINDOW)
        assert (
            cache.bytes_used
            == cache_bytes(LAYOUT, KV_HEADS, tokens=stop, itemsize=8, batch=BATCH, window=WINDOW)
            == kept * BATCH * KV_HEADS * WIDTH * 8
        )
        assert capacity or cache.bytes_reserved <= GROWTH * cache.bytes_used


def causal(start, stop, size, offset, attended):
    """What transformers leaves out where no window edge and no padding is in sight."""
    position, cached = torch.arange(start, stop)[:, None], torch.arange(offset, offset + size)
    assert bool(attended[:, offset:stop].all())
    assert size <= WINDOW or stop - start > 1
    return ((cached <= position) & (cached > position - WINDOW)).expand(BATCH, 1, -1, -1)


def test_layers_with_and_without_a_window_get_the_masks_of_their_kind():
    cache = RowCache(2, LAYOUT, KV_HEADS, windows=[None, WINDOW])
    for index in range(2):
        cache.update(rows(29), None, index)
    assert cache.is_sliding == [False, True]
    assert cache.get_seq_length() == cache.get_seq_length(1) == 29
    new, attended = torch.empty(BATCH, 4, 1), torch.ones(BATCH, 33, dtype=torch.long)
    attended[1, :20] = 0
    assert create_causal_mask(config(), new, attended, cache).shape == (BATCH, 1, 4, 33)
    assert create_sliding_window_causal_mask(config(), new, attended, cache).shape == (BATCH, 1, 4, WINDOW - 1 + 4)
    sees = [cache.update(rows(4), None, index)[0].shape[2] for index in range(2)]
    assert sees == [33, WINDOW - 1 + 4]
    assert cache.bytes_used == (33 + WINDOW) * BATCH * KV_HEADS * WIDTH * 8


def test_decoding_moves_rows_once_in_a_while_and_allocates_nothing(monkeypatch):
    slides, slide = [], RowStorage.slide
    monkeypatch.setattr(RowStorage, "slide", lambda self, *args: slides.append(args) or slide(self, *args))
    layer = filled(101, window=101)
    layer.append(rows(1))
    storage = layer.storage_id
    for _ in range(600):
        new = rows(1)
        seen = layer.append(new).heads_BGSW
        assert seen.untyped_storage().data_ptr() == storage
        assert torch.equal(seen[:, :, -1:], new)
    assert layer.storage_id == storage
    assert len(slides) <= 600 / 12 + 1
    assert seen[0, 0].is_contiguous()


def test_preallocated_rows_are_the_window_and_an_eighth():
    for capacity, reserved in ((500, 45), (45, 45), (41, 41), (7, 7)):
        layer = RowLayer(LAYOUT, KV_HEADS, capacity, window=40)
        layer.append(rows(1))
        storage = layer.storage_id
        for _ in range(capacity - 1):
            layer.append(rows(1))
        assert layer.bytes_reserved == cache_bytes(LAYOUT, KV_HEADS, tokens=reserved, itemsize=8, batch=BATCH)
        assert layer.storage_id == storage
        with pytest.raises(ValueError, match=f"made for {capacity} tokens and {capacity + 1} are needed"):
            layer.append(rows(1))
        assert layer.get_max_length() == capacity


def test_only_what_the_window_still_has_is_cropped():
    layer, kept = filled(29), RowLayer(LAYOUT, KV_HEADS, window=WINDOW)
    assert not layer.is_croppable
    with pytest.raises(ValueError, match=r"a window of 11 tokens has dropped .* cropping 2 of 29: start again"):
        layer.crop(-2)
    assert (layer.get_seq_length(), layer.kept().heads_BGSW.shape[2]) == (29, 11)
    layer.crop(-1)  # the next token needs ten rows and its own
    assert layer.get_mask_sizes(1) == (11, 18)
    assert layer.append(rows(1)).heads_BGSW.shape[2] == 11
    layer.crop(-29)
    assert (layer.get_seq_length(), layer.bytes_used, layer.bytes_reserved) == (0, 0, 0)
    kept.append(rows(WINDOW))
    kept.crop(-4)  # nothing was dropped yet
    assert kept.get_seq_length() == kept.kept().heads_BGSW.shape[2] == 7


@pytest.mark.parametrize("capacity", [None, 71], ids=["growing", "preallocated"])
def test_a_recorded_past_can_be_cropped_and_is_dropped_then(capacity):
    """As assisted decoding does: several proposals in, those that were wrong out."""
    query, all_rows = rows(67), rows(67)
    expected = whole(query, all_rows)
    layer = RowLayer(LAYOUT, KV_HEADS, capacity, window=WINDOW)
    layer.activate_past_recording()
    assert layer.is_croppable
    start = 0
    while start < 60:
        tokens = 23 if start == 0 else 7
        wrong = rows(tokens)
        right = min(tokens, 4) if start else tokens
        wrong[:, :, :right] = all_rows[:, :, start : start + right]
        size, offset = layer.get_mask_sizes(tokens)
        seen = layer.append(wrong).heads_BGSW
        assert seen.shape[2] == size
        mask = causal(start, start + tokens, size, offset, torch.ones(BATCH, 99, dtype=torch.bool))
        made = read(query[:, :, start : start + right], seen, mask[:, :, :right])
        torch.testing.assert_close(made, expected[:, :, start : start + right], rtol=0, atol=1e-12)
        layer.crop(right - tokens)
        start += right
        assert layer.get_seq_length() == start
        assert layer.kept().heads_BGSW.shape[2] == min(start, WINDOW)
        assert layer.bytes_reserved <= GROWTH * layer.bytes_used


def test_gradients_reach_the_rows_that_are_seen():
    for tokens in (1, 3, 29):
        layer = RowLayer(LAYOUT, KV_HEADS, window=WINDOW)
        with torch.no_grad():
            layer.append(rows(13))
        new = rows(tokens).requires_grad_()
        seen, _ = layer.update(new, None)
        weights = torch.randn_like(seen)
        (seen * weights).sum().backward()
        torch.testing.assert_close(new.grad, weights[:, :, -tokens:])


def test_windows_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        RowLayer(LAYOUT, KV_HEADS, window=0)
    with pytest.raises(ValueError, match=r"2 layers need as many windows \(None for a layer that sees all\), not 3"):
        RowCache(2, LAYOUT, KV_HEADS, windows=[None, 3, 3])


@pytest.mark.parametrize("make", [DynamicCache, lambda config: StaticCache(config, max_cache_len=29)])
def test_sliding_caches_are_adopted_by_models_with_the_same_windows(make):
    settings = config()
    settings.num_hidden_layers = 2
    windows = [WINDOW, WINDOW]
    cache = make(config=settings)
    assert adopt(cache, 2, LAYOUT, KV_HEADS, windows) is cache
    assert [layer.window for layer in cache.layers] == windows
    assert cache.get_max_length() == -1, "what a sliding static layer was made for is not known"
    with pytest.raises(ValueError, match="cannot be made to: it must be an empty DynamicCache"):
        adopt(make(config=settings), 2, LAYOUT, KV_HEADS)
    mixed = adopt(make(config=settings), 3, LAYOUT, KV_HEADS, [None, WINDOW, None])
    assert [layer.window for layer in mixed.layers] == [None, WINDOW, None], "of which transformers makes all sliding"
    with pytest.raises(
        ValueError, match=r"its layers see \[11, 11\] tokens \(None: all\), and those of this one \[None"
    ):
        adopt(cache, 2, LAYOUT, KV_HEADS)
