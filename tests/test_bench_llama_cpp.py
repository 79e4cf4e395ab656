"""llama.cpp beside Llama: the file holds the model, and where llama.cpp is installed it computes the same."""

import pytest
import torch

from twofold.bench import decoders, llama_cpp
from twofold.export.rotary_places import placed
from twofold.models.architecture import Architecture

gguf = pytest.importorskip("gguf")

ARCH = Architecture(layers=2, width=64, heads=2, mlp=96, vocab=257, positions=128, variant="MQA")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "llama.gguf"
    model = decoders.llama(ARCH)
    llama_cpp.write_gguf(model, path)
    return model, path


def test_the_file_holds_every_weight_once(written):
    model, path = written
    stored = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in gguf.GGUFReader(path).tensors}
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in model.parameters())
    assert torch.equal(stored["token_embd.weight"], model.model.embed_tokens.weight)
    assert torch.equal(stored["output_norm.weight"], model.model.norm.weight)
    layer = model.model.layers[1]
    assert torch.equal(stored["blk.1.ffn_down.weight"], layer.mlp.down_proj.weight)
    assert torch.equal(stored["blk.1.attn_v.weight"], layer.self_attn.v_proj.weight)
    assert not torch.equal(stored["blk.1.attn_q.weight"], layer.self_attn.q_proj.weight)


def test_the_file_names_the_sizes(written):
    fields = gguf.GGUFReader(written[1]).fields
    for name, expected in (("block_count", 2), ("attention.head_count", 2), ("attention.head_count_kv", 1)):
        assert fields[f"llama.{name}"].contents() == expected
    assert fields["llama.rope.freq_base"].contents() == pytest.approx(10_000)


def turned(x_D, position, pairs):
    """Rotary written out: the numbers of each pair of dims turn by position · base^(−2j/D)."""
    out = x_D.clone()
    for j, (a, b) in enumerate(pairs):
        angle = torch.tensor(position * 10_000 ** (-2 * j / len(x_D)), dtype=x_D.dtype)
        out[a] = x_D[a] * angle.cos() - x_D[b] * angle.sin()
        out[b] = x_D[b] * angle.cos() + x_D[a] * angle.sin()
    return out


def test_moved_weight_rows_turn_as_before():
    """Scores in llama.cpp's pairing with moved weight rows are transformers' scores."""
    dim, width = 10, 7
    query, key = torch.randn(2, dim, width, dtype=torch.float64)
    x, y = torch.randn(2, width, dtype=torch.float64)
    halves = [(j, j + dim // 2) for j in range(dim // 2)]
    neighbours = [(2 * j, 2 * j + 1) for j in range(dim // 2)]
    moved = [placed(weight, tuple(range(dim // 2)), dim) for weight in (query, key)]
    theirs = turned(query @ x, 13, halves) @ turned(key @ y, 5, halves)
    ours = turned(moved[0] @ x, 13, neighbours) @ turned(moved[1] @ y, 5, neighbours)
    torch.testing.assert_close(ours, theirs)


def test_llama_cpp_gives_the_same_logits(written):
    pytest.importorskip("llama_cpp")
    model, path = written
    ids = decoders.random_ids(ARCH, 1, 23)
    with torch.no_grad():
        expected = model(ids).logits[0, -1]
    with llama_cpp.session(path, 64, threads=1) as session:
        session.extend(ids[0])
        held = session.model.n_tokens
        assert held == 22
        assert session.decode(3) > 0
        session.step(int(ids[0, -1]))
        torch.testing.assert_close(torch.from_numpy(session.logits().copy()), expected, rtol=1e-2, atol=1e-2)
