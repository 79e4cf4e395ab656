"""The generation bench: a context is held, continued greedily, and held as before."""

import pytest
import torch

from bench_records import machine
from twofold.bench import decoders, generate, llama_cpp
from twofold.bench.generate import Dynamic, Ours, Static
from twofold.bench.sizes import Effort
from twofold.models.architecture import Architecture

SIZES = {"layers": 2, "width": 24, "heads": 3, "mlp": 40, "vocab": 53, "positions": 211}


def small(variant="QKV"):
    return Architecture(**SIZES, variant=variant)


IDS = decoders.random_ids(small(), 1, 101)[0]


def following(decoder):
    """Logits of the token after the held ones: they read every cached number."""
    with torch.no_grad():
        logits = decoder.model(decoder.ids_T[None, -1:], cache=decoder.cache).logits
    decoder.cache.crop(-1)
    return logits


def dynamic(variant):
    arch = small(variant)
    return Dynamic(decoders.llama(arch)) if variant == "QKV" else Ours(decoders.ours(arch))


@pytest.mark.parametrize("variant", ["QKV", "K=V", "K=V MQA"])
def test_a_context_grown_in_chunks_is_one_that_was_read_at_once(variant, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK", 7)
    grown, whole = dynamic(variant), dynamic(variant)
    for length in (2, 40, 101):
        grown.extend(IDS[:length])
        assert grown.cache.get_seq_length() == length - 1
    with torch.no_grad():
        expected = whole.model(IDS[None]).logits[:, -1:]
    torch.testing.assert_close(following(grown), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["QKV", "K=V"])
def test_decoding_leaves_the_context_as_it_was(variant):
    decoder = dynamic(variant)
    decoder.extend(IDS[:53])
    before = following(decoder)
    assert all(decoder.decode(5) > 0 for _ in range(2))
    assert decoder.cache.get_seq_length() == 52
    assert torch.equal(following(decoder), before)


def test_a_static_cache_holds_the_same_context(monkeypatch):
    source = dynamic("QKV")
    source.extend(IDS[:53])
    static, texts = Static(source), []
    static.extend(IDS[:53])

    def noted(model, ids_T, cache, steps):
        made = model.generate(ids_T[None], cache=cache, max_new_tokens=steps + 1, do_sample=False)
        texts.append(made[0].tolist())
        return 1.0

    monkeypatch.setattr(generate, "generated", noted)
    static.decode(9)
    texts.append(source.model.generate(IDS[None, :53], max_new_tokens=10, do_sample=False)[0].tolist())
    assert texts[0] == texts[1]
    assert source.cache.get_seq_length() == 52


def test_every_variant_meets_every_alternative_at_every_context(monkeypatch):
    monkeypatch.setattr(generate, "fifteen_million", lambda variant="QKV": small(variant))
    monkeypatch.setattr(generate, "QUICK_CONTEXTS", (5, 11))
    monkeypatch.setattr(generate, "QUICK_STEPS", 2)
    monkeypatch.setattr(llama_cpp, "NEEDS", {"no_such_module": "llama-cpp-python"})
    rows, left_out = generate.measure(Effort(2, quick=True), machine(), lambda *place: None)
    assert {(row.variant, row.context) for row in rows} == {
        (variant, context) for variant in ("QKV", "K=V", "K=V MQA") for context in (5, 11)
    }
    assert {row.alternative for row in rows} == {"Llama, DynamicCache", "Llama, StaticCache"}
    assert len(rows) == 12
    assert all(row.ratio > 0 and row.roof_fraction > 0 and row.bytes > 0 for row in rows)
    assert "llama.cpp is left out" in left_out[0]
