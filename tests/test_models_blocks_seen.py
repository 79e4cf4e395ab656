"""Layers that see blocks of tokens: their mask written out, decoding, padding, documents, costs, flex attention."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers.masking_utils import and_masks, causal_mask_function

from every_variant import EVERY, every_model
from small_models import random_ids, small_config, small_model
from twofold.analysis.costs import macs
from twofold.models.architecture import Architecture
from twofold.models.sights import blocks_overlay, sights

W = 3
LENGTHS = (W - 1, W, W + 1, 3 * W, 3 * W + 1, 17)
CASES = [
    ("B", "QKV", {}),
    ("B", "K=V on_read", {}),
    ("LB", "K=V GQA-2", {}),
    ("LB", "K=V on_read", {}),
    ("LB", "K=V CLA-2", {}),
    ("BS", "K=V GQA-2", {"sinks": True, "softcap": 1.7}),
    ("BS", "K=V on_read", {}),
    ("BS", "K=V MQA", {"block": "paper", "rotary": "none"}),
    ("LB", "MLA", {"rotary": "", "rotary_dims": 8, "latent_dims": 24}),
    ("B", "GQA-2", {"attn_implementation": "eager"}),
]


def sees(query, key, w=W):
    """From the meaning: nothing later; its own block, the one before, and the first."""
    return key <= query and (query // w - key // w in (0, 1) or key < w)


def written_mask(length, pads=(0, 0), w=W):
    """[B, 1, T, T]; padding on the left sees itself alone."""
    rows = [
        [[(k >= p and q >= p and sees(q - p, k - p, w)) or q == k for k in range(length)] for q in range(length)]
        for p in pads
    ]
    return torch.tensor(rows)[:, None]


def blocky(variant, pattern="B", **others):
    return small_model(variant, sliding_window=W, layer_pattern=pattern, **others)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("pads", [(0, 0), (1, 0)], ids=str)
def test_the_mask_is_what_it_means(pads, length):
    config = small_config(layer_pattern="B", sliding_window=W)
    x = torch.empty(2, length, config.hidden_size)
    attended = None if pads == (0, 0) else (torch.arange(length) >= torch.tensor(pads)[:, None]).long()
    none = [None] * config.num_hidden_layers
    made = sights(config, config.architecture, x, attended, None, torch.arange(length)[None], none)[0].mask
    expected = written_mask(length, pads)
    for b, pad in enumerate(pads):
        assert torch.equal(made[b, :, pad:], expected[b, :, pad:])


@pytest.mark.parametrize("name", [name for name, fields in EVERY.items() if "window" not in fields])
def test_every_variant_reads_what_the_mask_written_out_lets_it(name):
    """Logits and gradients of a model that sees all, under the mask as four dimensions, which is held to equations."""
    model, plain = every_model(name, sliding_window=W, layer_pattern="B"), every_model(name)
    ids, mask = random_ids(2, 13), written_mask(13)
    outputs = model(ids).logits, plain(ids, attention_mask=mask).logits
    assert (outputs[0] - plain(ids).logits).abs().max() > 1e-3
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-10)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(m.parameters()))
        for out, m in zip(outputs, (model, plain), strict=True)
    ]
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize(("pattern", "variant", "others"), CASES)
def test_each_layer_has_its_own_reach(pattern, variant, others):
    """One layer after the other, each under the mask of its letter."""
    model = blocky(variant, pattern, **others)
    ids = random_ids(2, 13)
    at = torch.arange(13)
    ago = at[:, None] - at
    masks = {"L": ago >= 0, "S": (ago >= 0) & (ago < W), "B": written_mask(13)[0, 0]}
    inner, rows = model.model, None
    with torch.no_grad():
        x = inner.embed_tokens(ids)
        if inner.embed_positions is not None:
            x = x + inner.embed_positions(at)
        by = inner.rotations(at[None], x.dtype)[0]
        row_rotation = by if "on_read" in variant else None
        for layer, letter in zip(inner.layers, (pattern * 2)[:2], strict=True):
            mask = masks[letter].expand(2, 1, -1, -1)
            if model.config._attn_implementation == "eager":
                mask = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, torch.finfo(x.dtype).min)
            x, rows = layer(x, by, mask, None, row_rotation, rows)
        torch.testing.assert_close(model(ids).logits, model.lm_head(inner.norm(x)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("pattern", "variant", "others"), CASES)
def test_steps_with_a_cache_give_what_one_pass_gives(pattern, variant, others, length):
    model, ids = blocky(variant, pattern, **others), random_ids(2, length)
    for first, step in ((0, 1), (length // 2, 1), (W, 4)):
        cache, made = model.model.new_cache(), []
        with torch.no_grad():
            expected = model(ids, use_cache=False).logits
            for start, stop in [(0, first), *((n, min(n + step, length)) for n in range(first, length, step))]:
                if stop > start:
                    made.append(model(ids[:, start:stop], cache=cache).logits)
        torch.testing.assert_close(torch.cat(made, dim=1)[:, :length], expected, rtol=0, atol=1e-9)
    assert cache.bytes_used == model.config.architecture.cache_bytes(length, "float64", 2)


@pytest.mark.parametrize("dtype", [None, "int8"])
@pytest.mark.parametrize(("pattern", "variant"), [("B", "K=V GQA-2"), ("BL", "K=V on_read"), ("LB", "K=V CLA-2")])
def test_steps_that_a_kernel_could_take_see_blocks_all_the_same(pattern, variant, dtype):
    """In float32, and with rows that are kept rounded."""
    model, ids = blocky(variant, pattern, head_dim=8).float(), random_ids(2, 17)
    with torch.no_grad():
        expected, cache = model(ids, use_cache=False).logits, model.model.new_cache(dtype=dtype)
        made = [model(ids[:, :7], cache=cache).logits]
        made += [model(ids[:, n : n + 2], cache=cache).logits for n in range(7, 17, 2)]
    assert (torch.cat(made, dim=1) - expected).norm() < (1e-5 if dtype is None else 5e-2) * expected.norm()


def test_a_layer_of_blocks_keeps_all_rows():
    model = blocky("K=V", "BS")
    cache = model(random_ids(2, 17)).cache
    assert [layer.kept().heads_BGSW.shape[2] for layer in cache.layers] == [17, W]
    assert model.config.architecture.cached_rows[2] == (None, W)


@pytest.mark.parametrize(("pattern", "variant", "others"), CASES)
def test_a_padded_sequence_gives_what_it_gives_alone(pattern, variant, others):
    """In a pass, and decoding: blocks are counted from the first token, wherever it stands."""
    model, ids, pads = blocky(variant, pattern, **others), random_ids(4, 17), (0, 1, W, 8)
    mask = (torch.arange(17) >= torch.tensor(pads)[:, None]).long()
    with torch.no_grad():
        together = model(ids, attention_mask=mask, use_cache=False).logits
        cache = model(ids[:, :11], attention_mask=mask[:, :11]).cache
        steps = [model(ids[:, n : n + 1], attention_mask=mask[:, : n + 1], cache=cache).logits for n in range(11, 17)]
        for b, pad in enumerate(pads):
            alone = model(ids[b : b + 1, pad:], use_cache=False).logits[0]
            torch.testing.assert_close(together[b, pad:], alone, rtol=0, atol=1e-9)
            torch.testing.assert_close(torch.cat(steps, dim=1)[b], alone[-6:], rtol=0, atol=1e-9)


def test_generated_tokens_are_those_of_the_full_pass():
    model, ids = blocky("K=V GQA-2", "BL"), random_ids(2, 7)
    mask = torch.tensor([[0] * 4 + [1] * 3, [1] * 7])
    made = model.generate(ids, attention_mask=mask, max_new_tokens=11, do_sample=False, pad_token_id=0)
    for b, pad in enumerate((4, 0)):
        own = ids[b : b + 1, pad:]
        for _ in range(11):
            own = torch.cat([own, model(own, use_cache=False).logits[:, -1:].argmax(dim=-1)], dim=1)
        assert torch.equal(made[b, pad:], own[0])


def test_documents_in_one_row_have_blocks_of_their_own():
    model, ids = blocky("K=V"), random_ids(1, 15)
    positions = torch.cat([torch.arange(8), torch.arange(7)])[None]
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits[0]
        for start, stop in ((0, 8), (8, 15)):
            alone = model(ids[:, start:stop], use_cache=False).logits[0]
            torch.testing.assert_close(packed[start:stop], alone, rtol=0, atol=1e-9)


def test_blocks_are_of_tokens_and_not_of_position_numbers():
    model, ids = blocky("K=V"), random_ids(1, 13)
    with torch.no_grad():
        here = model(ids).logits
        torch.testing.assert_close(model(ids, position_ids=torch.arange(13)[None] + 1_000_001).logits, here)


def test_flex_attention_skips_blocks_that_nobody_sees():
    """As transformers hands the mask to it: of 9 blocks at most 3 are kept for each query block."""
    size = 128
    mask = and_masks(causal_mask_function, blocks_overlay(size, torch.ones(1, 9 * size)))
    made = create_block_mask(mask, 1, None, 9 * size, 9 * size, device="cpu", BLOCK_SIZE=size)
    assert (made.kv_num_blocks + made.full_kv_num_blocks)[0, 0].tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]


@pytest.mark.system
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler and transformers' use of it
@pytest.mark.parametrize("pads", [(0, 0), (4, 0)], ids=str)
def test_flex_attention_gives_the_same(pads):
    model, ids = blocky("K=V GQA-2", head_dim=16).float(), random_ids(2, 13)
    mask = (torch.arange(13) >= torch.tensor(pads)[:, None]).long()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
        model.set_attn_implementation("flex_attention")
        made = model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("letter", ["S", "B"])
def test_implementations_that_take_no_mask_are_refused(letter):
    model = blocky("QKV", letter)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=rf"'flash_attention_2' takes no mask.*pattern '{letter}' need: use eager, "):
        model(random_ids(1, 5))


SIZES = {"layers": 2, "width": 12, "heads": 3, "mlp": 7, "vocab": 11, "positions": 13}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_pattern": "B"}, "layer_pattern 'B' has layers with a window or blocks: give window"),
        ({"layer_pattern": "BX", "window": 3}, "may hold S .*, B .* and L"),
        ({"layer_pattern": "BS", "window": 3, "variant": "K=V CLA-2"}, "gives them different windows"),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Architecture(**SIZES, **fields)


def test_a_token_counts_three_blocks_at_most():
    plain, blocks = Architecture(**SIZES), Architecture(**SIZES, layer_pattern="B", window=5)
    slides = Architecture(**SIZES, layer_pattern="S", window=15)
    for tokens in (1, 5, 14, 15):
        assert macs(blocks, tokens) == macs(plain, tokens)
    for tokens in (15, 16, 1000):
        assert macs(blocks, tokens) == macs(slides, tokens)
    assert macs(blocks, 16)["total"] < macs(plain, 16)["total"]
    most = max(sum(sees(query, key, 5) for key in range(100)) for query in range(100))
    assert most == 15
