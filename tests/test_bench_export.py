"""The export bench: what stands beside the export computes the same function, and caches keys and values apart."""

from dataclasses import replace

import pytest
import torch

from twofold.bench import decoders, export
from twofold.bench.apart import EXPANDED, GROUPED, grouped
from twofold.bench.export import CASES, HEAD_DIM, HEADS, ROTARY, Case, contestants, sized
from twofold.bench.llama_cpp import session
from twofold.bench.sizes import Effort
from twofold.export.gguf_file import gguf, write_gguf
from twofold.models.architecture import Architecture

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")

IDS = torch.randint(61, (1, 23), generator=torch.Generator().manual_seed(0))


def small(variant, **others):
    sizes = {"layers": 2, "width": 48, "heads": 4, "head_dim": 16, "mlp": 64, "vocab": 61, "positions": 512}
    return decoders.ours(Architecture(**sizes, variant=variant, rotary_dims=8, rotary_base=700.0, **others))


def last_logits(path):
    with session(path, 64, threads=1) as held:
        held.extend(IDS[0])
        held.step(int(IDS[0, -1]))
        return torch.from_numpy(held.logits().copy()), held.cache


@pytest.mark.parametrize("variant", ["K=V decoupled", "K=V GQA-2 decoupled", "K=V MQA decoupled"])
def test_keys_and_values_apart_are_the_same_function(variant, tmp_path):
    """For each query head with the norm of the content, for each key/value head where there is none."""
    for norm, make, form, heads in ((True, gguf, EXPANDED, 4), (False, grouped, GROUPED, None)):
        model = small(variant, latent_norm=norm)
        target = make(model)
        write_gguf(target, tmp_path / f"{norm}.gguf", "f32", None, form)
        logits_V, cache = last_logits(tmp_path / f"{norm}.gguf")
        with torch.no_grad():
            torch.testing.assert_close(logits_V, model(IDS).logits[0, -1], rtol=0, atol=1e-4)
        heads = heads or model.config.architecture.kv_heads
        cells = 256 * 2 * 4 / 2**20  # llama.cpp rounds 64 tokens up; two layers, float32
        assert cache.keys == pytest.approx(heads * (16 + 8) * cells, abs=0.006)
        assert cache.values == pytest.approx(heads * 16 * cells, abs=0.006)


@pytest.fixture
def narrow(monkeypatch):
    """The bench's models, but for width, MLP and vocabulary."""
    monkeypatch.setattr(
        export, "sized", lambda *given, **others: replace(sized(*given, **others), width=64, mlp=32, vocab=61)
    )


def test_no_other_gqa_caches_more_alike():
    for case in CASES:
        row, other = sized(case.variant, rotary_dims=ROTARY), sized(case.gqa)
        assert (row.heads, row.kv_heads, other.heads, other.kv_heads) == (HEADS, case.kv_heads, HEADS, case.gqa_heads)
        numbers, theirs = (one.row_layout.numbers(one.kv_heads) for one in (row, other))
        assert (numbers, theirs) == (case.kv_heads * HEAD_DIM + ROTARY, case.gqa_heads * 2 * HEAD_DIM)
        away = {heads: abs(heads * 2 * HEAD_DIM - numbers) for heads in (1, 2, 4, 8)}
        assert away[case.gqa_heads] == min(away.values())


@pytest.mark.usefixtures("narrow")
def test_each_contender_holds_its_own_cache(monkeypatch):
    monkeypatch.setattr(export, "HEADS", 4)
    with contestants(Case(2, 1), 200, quick=True) as sessions:
        assert list(sessions) == ["ours", "apart, 2 heads", "apart, 4 heads", "MQA"]
        cells = 256 * 2 * 2 / 2**20
        ours, two, four, gqa = (each.cache for each in sessions.values())
        assert ours.values == 0
        assert ours.keys == pytest.approx(160 * cells, abs=0.006)
        assert two.bytes == pytest.approx(2 * 160 * cells * 2**20, abs=12_000)
        assert four.bytes == pytest.approx(4 * 160 * cells * 2**20, abs=12_000)
        assert gqa.bytes == pytest.approx(128 * cells * 2**20, abs=12_000)
        for held in sessions.values():
            held.extend(decoders.random_ids(export.sized("QKV"), 1, 40)[0])
            assert held.decode(2) > 0
            assert held.model.n_tokens == 39


@pytest.mark.usefixtures("narrow")
def test_rows_carry_both_caches(monkeypatch):
    from bench_records import machine

    monkeypatch.setattr(export, "CASES", (Case(8, 4),))
    monkeypatch.setattr(export, "QUICK_CONTEXT", 40)
    monkeypatch.setattr(export, "QUICK_STEPS", 2)
    rows, left_out = export.measure(Effort(2, quick=True), machine(), lambda *_: None)
    assert not left_out
    assert [row.alternative for row in rows] == ["apart, 8 heads", "GQA-4"] * 2
    assert rows[0].cache_share == pytest.approx((8 * 64 + 32) / (8 * 160), rel=0.02)
    assert rows[1].cache_share == pytest.approx((8 * 64 + 32) / (4 * 128), rel=0.02)
