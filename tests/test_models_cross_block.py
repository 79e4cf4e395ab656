"""Blocks with cross-attention: their sum, decoding beside the full pass, padding, beams, bytes, training."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from small_models import STYLES, WIDTH, randomise, small_config
from twofold.attention.cross import MemorySpan
from twofold.attention.rotary import rotation
from twofold.models.cross_block import CrossDecoderBlock, new_memory_cache
from twofold.models.encoder import TwofoldEncoder
from twofold.models.encoder_configuration import TwofoldEncoderConfig
from twofold.models.sights import memory_sight, sights

B, T, S, LAYERS = 3, 13, 11, 2
LEFT_PADDED = torch.tensor([[1] * 13, [0] * 4 + [1] * 9, [0] * 9 + [1] * 4])
MEMORY_PADDED = torch.tensor([[1] * 11, [1] * 7 + [0] * 4, [1] * 2 + [0] * 9])


class Stack(nn.Module):
    """Blocks, and what each pass through them needs."""

    def __init__(self, config):
        super().__init__()
        self.config, self.sizes = config, config.architecture
        self.layers = nn.ModuleList(CrossDecoderBlock(config, n) for n in range(LAYERS))

    def forward(self, x, memory, mask=None, memory_mask=None, cache=None):
        """`mask` over cached and new positions."""
        cached = 0 if cache is None else cache.get_seq_length()
        positions = torch.arange(cached, cached + x.shape[1])[None]
        if mask is not None:
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -x.shape[1] :]
        dims, base = self.sizes.rotated_dims, self.sizes.rotary_base
        by = rotation(positions, dims, base, x.dtype) if dims else None
        own = None if cache is None else cache.own
        seen = sights(self.config, self.config.architecture, x, mask, own, positions, [by] * LAYERS)
        sight = memory_sight(self.config, x, memory_mask)
        for layer, (sees, row_rotation) in zip(self.layers, seen, strict=True):
            x = layer(x, memory, by, sees, sight, cache=cache, row_rotation=row_rotation)
        return x


def stack(variant="K=V GQA-2", block="modern", rotary="full", **others):
    made = Stack(small_config(variant, block, rotary, **others)).double()
    randomise(made)
    return made


def inputs():
    return torch.randn(B, T, WIDTH, dtype=torch.float64), torch.randn(B, S, WIDTH, dtype=torch.float64)


def test_a_block_adds_two_attentions_and_an_mlp():
    layer = stack("K=V GQA-2", "paper", "none").layers[0]
    x, memory = inputs()
    own = x + layer.attention(layer.attention_norm(x), None, None).output_BTM
    crossed = own + layer.cross_attention(layer.cross_norm(own), layer.cross_attention.rows(memory)).output_BTM
    expected = crossed + layer.mlp(layer.mlp_norm(crossed))
    assert torch.equal(layer(x, memory, None, None), expected)
    assert (crossed - own).norm() > 0.1 * own.norm()


CASES = [
    *((variant, *style, {}) for variant in ("QKV", "K=V GQA-2") for style in STYLES),
    ("K=V MQA", "modern", "full", {}),
    ("K=V on_read", "modern", "full", {}),
    ("Q=K=V", "paper", "none", {}),
    ("QKV", "modern", "full", {"sinks": True}),
    ("K=V", "modern", "full", {"sliding_window": 3, "layer_pattern": "SL"}),
    ("K=V", "modern", "full", {"attn_implementation": "eager"}),
]


@pytest.mark.parametrize("padded", [False, True], ids=["no padding", "padding"])
@pytest.mark.parametrize("steps", [[1] * T, [5, 1, 1, 6], [9, 4]], ids=str)
@pytest.mark.parametrize(("variant", "block", "rotary", "others"), CASES)
def test_steps_with_a_cache_give_what_one_pass_gives(variant, block, rotary, others, steps, padded):
    model = stack(variant, block, rotary, **others)
    x, memory = inputs()
    mask, memory_mask = (LEFT_PADDED, MEMORY_PADDED) if padded else (None, None)
    cache, made = new_memory_cache(model.sizes), []
    with torch.no_grad():
        expected = model(x, memory, mask, memory_mask)
        for step in steps:
            start, stop = cache.get_seq_length(), cache.get_seq_length() + step
            seen = None if mask is None else mask[:, :stop]
            made.append(model(x[:, start:stop], None if start else memory, seen, memory_mask, cache))
    real = torch.ones(B, T, dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(torch.cat(made, dim=1)[real], expected[real], rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [None, "int8"])
@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2"])
def test_steps_that_the_kernel_takes_give_what_one_pass_gives(variant, dtype):
    """In float32, padded, and with rows that are kept rounded."""
    model = stack(variant, head_dim=8).float()
    x, memory = (part.float() for part in inputs())
    cache, made = new_memory_cache(model.sizes, dtype=dtype), []
    with torch.no_grad():
        expected = model(x, memory, LEFT_PADDED, MEMORY_PADDED)
        for start, stop in ((0, 10), (10, 11), (11, 13)):
            made.append(model(x[:, start:stop], memory, LEFT_PADDED[:, :stop], MEMORY_PADDED, cache))
    off = (torch.cat(made, dim=1) - expected)[LEFT_PADDED.bool()]
    assert off.norm() < (1e-5 if dtype is None else 5e-2) * expected[LEFT_PADDED.bool()].norm()


def test_padding_of_tokens_and_memory_changes_nothing():
    model = stack()
    x, memory = inputs()
    with torch.no_grad():
        together = model(x, memory, LEFT_PADDED, MEMORY_PADDED)
        for b in range(B):
            own, of_memory = LEFT_PADDED[b].bool(), MEMORY_PADDED[b].bool()
            alone = model(x[b : b + 1, own], memory[b : b + 1, of_memory])
            torch.testing.assert_close(together[b, own], alone[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_beams_and_batches_take_their_memory_along(dtype):
    """Beams of the same sequence, and of others, then some of them alone: each goes on as from its own history."""
    model = stack()
    x, memory = inputs()
    cache, new = new_memory_cache(model.sizes, dtype=dtype), torch.randn(B, 1, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        model(x, memory, None, MEMORY_PADDED, cache)
        cache.batch_repeat_interleave(2)
        order = torch.tensor([1, 0, 5, 2, 2, 4])
        cache.reorder_cache(order)
        cache.batch_select_indices(torch.tensor([0, 2, 3]))
        of = torch.arange(B).repeat_interleave(2)[order][[0, 2, 3]]
        assert sorted(of.tolist()) == [0, 1, 2]
        made = model(new, None, None, MEMORY_PADDED[of], cache)
        again = new_memory_cache(model.sizes, dtype=dtype)
        model(x[of], memory[of], None, MEMORY_PADDED[of], again)
        expected = model(new, None, None, MEMORY_PADDED[of], again)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-9)


def test_tokens_are_forgotten_without_the_memory_and_both_by_a_reset():
    model = stack()
    x, memory = inputs()
    cache = new_memory_cache(model.sizes)
    with torch.no_grad():
        model(x, memory, cache=cache)
        of_memory = cache.memory.bytes_used
        cache.crop(-4)
        assert (cache.get_seq_length(), cache.memory.bytes_used) == (T - 4, of_memory)
        again = model(x[:, -4:], None, cache=cache)
        torch.testing.assert_close(again, model(x, memory)[:, -4:], rtol=0, atol=1e-9)
    assert repr(cache) == "MemoryCache(13 tokens and 11 of a memory)"
    cache.reset()
    assert (cache.bytes_used, cache.bytes_reserved, cache.get_seq_length()) == (0, 0, 0)


def test_both_kinds_of_rows_are_counted_and_halved_by_sharing():
    bytes_of = {}
    for variant in ("GQA-2", "K=V GQA-2"):
        model = stack(variant)
        cache = new_memory_cache(model.sizes, capacity=T, memory_capacity=S)
        with torch.no_grad():
            model(*inputs(), cache=cache)
        assert cache.bytes_used == cache.bytes_reserved == model.sizes.cache_bytes(T + S, "float64", B)
        bytes_of[variant] = cache.bytes_reserved
    assert bytes_of["GQA-2"] == 2 * bytes_of["K=V GQA-2"]


@pytest.mark.parametrize("mask", [None, MEMORY_PADDED])
def test_only_few_positions_on_a_cpu_take_a_span(mask):
    few, many = torch.randn(B, 8, WIDTH), torch.randn(B, 9, WIDTH)
    assert isinstance(memory_sight(small_config(), few, mask), MemorySpan)
    for config, x in (
        (small_config(), many),
        (small_config(sinks=True), few),
        (small_config(attn_implementation="eager"), few),
    ):
        sight = memory_sight(config, x, mask)
        assert (sight is None) == (mask is None)
        assert sight is None or sight.shape == (B, 1, x.shape[1], S)


def test_masks_of_a_memory_that_do_not_fit_are_refused():
    x = torch.randn(B, 1, WIDTH)
    with pytest.raises(ValueError, match=r"must be \[B, S\] for 3 sequences, not \[2, 11\]"):
        memory_sight(small_config(), x, MEMORY_PADDED[:2])
    with pytest.raises(ValueError, match="the memory of a sequence is padding only"):
        memory_sight(small_config(), x, MEMORY_PADDED * torch.tensor([[1], [0], [1]]))


@pytest.mark.parametrize("variant", ["K=V CLA-2", "QKV tied-2"])
def test_layers_that_share_are_refused(variant):
    with pytest.raises(ValueError, match=r"shares rows or projections between layers.*leave CLA and tied out"):
        CrossDecoderBlock(small_config(variant), 0)


def test_checkpointing_keeps_the_gradients():
    model = stack().train()
    x, memory = (part.requires_grad_() for part in inputs())
    plain = torch.autograd.grad(model(x, memory).square().sum(), [x, memory, *model.parameters()])
    for layer in model.layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = lambda *args, **kwargs: checkpoint(*args, use_reentrant=False, **kwargs)
    again = torch.autograd.grad(model(x, memory).square().sum(), [x, memory, *model.parameters()])
    for one, other in zip(plain, again, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Transducer(nn.Module):
    """An encoder of tokens, and a decoder of tokens that reads it; the last token is the first that it is given."""

    vocab, length = 7, 5

    def __init__(self, variant):
        super().__init__()
        config = small_config(variant, hidden_size=16, num_attention_heads=2, head_dim=8, intermediate_size=32)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": self.vocab, "max_position_embeddings": 5}
        styles = {"positions": "learned", "norm_order": "pre", "attn_implementation": "sdpa"}
        self.encoder = TwofoldEncoder(TwofoldEncoderConfig(variant=variant, **sizes, **styles))
        self.embed, self.decoder = nn.Embedding(self.vocab + 1, 16), Stack(config)
        self.head = nn.Linear(16, self.vocab)

    def loss(self, ids):
        given = nn.functional.pad(ids[:, :-1], (1, 0), value=self.vocab)
        logits = self.head(self.decoder(self.embed(given), self.encoder(ids).last_hidden_state))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    def said(self, ids):
        """Greedily, token by token, with a cache."""
        cache, tokens = new_memory_cache(self.decoder.sizes), [torch.full_like(ids[:, :1], self.vocab)]
        memory = self.encoder(ids).last_hidden_state
        for _ in range(self.length):
            x = self.decoder(self.embed(tokens[-1]), memory, cache=cache)
            tokens.append(self.head(x).argmax(dim=-1))
        return torch.cat(tokens[1:], dim=1)


@pytest.mark.parametrize("variant", ["QKV", "K=V"])
def test_an_encoder_and_a_decoder_learn_to_say_a_sequence_again(variant):
    """Only the memory knows the tokens: without it no model is below ln 7 nats per token."""
    model, generator = Transducer(variant), torch.Generator().manual_seed(5)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(150):
        optimiser.zero_grad()
        model.loss(torch.randint(7, (32, 5), generator=generator)).backward()
        assert all(p.grad is not None for p in model.parameters())
        optimiser.step()
    unseen = torch.randint(7, (64, 5), generator=generator)
    with torch.no_grad():
        assert model.loss(unseen) < math.log(7) / 10
        assert (model.said(unseen) == unseen).float().mean() > 0.98
