"""Saved rows: what stands in the file, what comes back, and that nothing else is ever taken for them."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers.cache_utils import DynamicCache

from twofold.cache.row_cache import RowCache
from twofold.cache.saved import load, save, saved_token_ids
from twofold.variants.layout import RowLayout, cache_bytes, scale_bytes

KV_HEADS, LAYERS, BATCH, TOKENS = 3, 2, 4, 7
MODEL = {"variant": "K=V", "weights": "5eed"}
LAYOUTS = {
    "separate": RowLayout.separate(5),
    "shared": RowLayout.shared(5),
    "partial": RowLayout.partial(7, 2),
    "decoupled": RowLayout.decoupled(5, 2),
}


def filled(
    layout=LAYOUTS["decoupled"], tokens=TOKENS, dtype=torch.float32, capacity=None, cache_dtype=None, windows=None
):
    cache = RowCache(LAYERS, layout, KV_HEADS, capacity, dtype=cache_dtype, windows=windows)
    for index in range(LAYERS):
        heads = torch.randn(BATCH, KV_HEADS, tokens, layout.head_width, dtype=dtype)
        width = layout.shared_width
        cache.update(heads, torch.randn(BATCH, tokens, width, dtype=dtype) if width else None, index)
    return cache


def assert_equal_rows(one, other):
    for layer, twin in zip(one.layers, other.layers, strict=True):
        assert (layer.layout, layer.kv_heads, layer.dtype) == (twin.layout, twin.kv_heads, twin.dtype)
        for part, same in zip(layer.kept(), twin.kept(), strict=True):
            assert (part is None) == (same is None)
            assert part is None or (part.dtype == same.dtype and torch.equal(part, same))


def append_alike(*caches):
    """One token more in each; what they return."""
    heads, shared = torch.randn(BATCH, KV_HEADS, 1, 5), torch.randn(BATCH, 1, 2)
    return [[cache.update(heads, shared, index) for index in range(LAYERS)] for cache in caches]


def token_ids():
    return torch.randint(99, (BATCH, TOKENS))


@pytest.mark.parametrize("capacity", [None, 61], ids=["growing", "preallocated"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_rows_come_back_bit_by_bit_and_take_the_bytes_of_the_formula(layout, dtype, capacity, tmp_path):
    cache = filled(layout, dtype=dtype, capacity=capacity)
    cache.crop(-2)
    save(cache, tmp_path / "rows", MODEL)
    made = load(tmp_path / "rows", MODEL)
    assert_equal_rows(cache, made)
    expected = cache_bytes(layout, KV_HEADS, tokens=TOKENS - 2, itemsize=dtype.itemsize, layers=LAYERS, batch=BATCH)
    assert made.bytes_used == expected
    assert made.bytes_reserved <= 1.5 * expected
    assert sum(tensor.nbytes for tensor in load_file(tmp_path / "rows").values()) == expected
    assert 0 < (tmp_path / "rows").stat().st_size - expected < 1_700  # the header
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    full = load(tmp_path / "rows", MODEL, capacity=19)
    assert_equal_rows(cache, full)
    assert full.bytes_reserved == expected // (TOKENS - 2) * 19


def test_a_cache_that_converts_still_does(tmp_path):
    cache = filled(cache_dtype=torch.bfloat16)
    save(cache, tmp_path / "rows", MODEL)
    made = load(tmp_path / "rows", MODEL)
    assert_equal_rows(cache, made)
    seen, _ = made.update(torch.randn(BATCH, KV_HEADS, 1, 5), torch.randn(BATCH, 1, 2), 0)
    assert seen.dtype == torch.float32
    save(filled(dtype=torch.bfloat16), tmp_path / "rows", MODEL)
    with pytest.raises(ValueError, match=r"holds torch\.bfloat16 rows and got torch\.float32"):
        load(tmp_path / "rows", MODEL).update(torch.randn(BATCH, KV_HEADS, 1, 5), torch.randn(BATCH, 1, 2), 0)


@pytest.mark.parametrize("capacity", [None, 19], ids=["growing", "preallocated"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_int8_rows_come_back_with_their_scales(layout, capacity, tmp_path):
    cache = filled(layout, cache_dtype="int8", capacity=capacity)
    cache.crop(-2)
    save(cache, tmp_path / "rows", MODEL)
    made = load(tmp_path / "rows", MODEL, capacity=capacity)
    assert_equal_rows(cache, made)
    expected = cache_bytes(
        layout, KV_HEADS, tokens=TOKENS - 2, itemsize=1, layers=LAYERS, batch=BATCH, scale_bytes=scale_bytes("int8")
    )
    assert made.bytes_used == expected
    if capacity:
        assert made.bytes_reserved == expected // (TOKENS - 2) * 19
    else:
        assert made.bytes_reserved <= 1.5 * expected
    assert sum(tensor.nbytes for tensor in load_file(tmp_path / "rows").values()) == expected


def test_a_loaded_int8_cache_goes_on_as_the_saved_one_would_have(tmp_path):
    cache = filled(cache_dtype="int8")
    save(cache, tmp_path / "rows", MODEL)
    made = load(tmp_path / "rows", MODEL)
    for one, other in zip(*append_alike(cache, made), strict=True):
        assert all(
            torch.equal(part, same) and part.dtype == torch.float32 for part, same in zip(one, other, strict=True)
        )


@pytest.mark.parametrize("cache_dtype", [None, "int8"])
@pytest.mark.parametrize("tokens", [4, 5, 6, 17, 31])
def test_windows_come_back_with_the_tokens_that_they_have_seen(tokens, cache_dtype, tmp_path):
    cache, ids = filled(tokens=tokens, cache_dtype=cache_dtype, windows=[None, 5]), torch.randint(99, (BATCH, tokens))
    cache.crop(-1)
    ids = ids[:, :-1]
    save(cache, tmp_path / "rows", MODEL, ids)
    made = load(tmp_path / "rows", MODEL, prompt=torch.cat([ids, ids[:, :1]], dim=1))
    assert_equal_rows(cache, made)
    assert [layer.window for layer in made.layers] == [None, 5]
    assert made.layers[1].get_mask_sizes(1) == cache.layers[1].get_mask_sizes(1)
    for _ in range(8):
        for one, other in zip(*append_alike(cache, made), strict=True):
            assert all(torch.equal(part, same) for part, same in zip(one, other, strict=True))
    assert_equal_rows(cache, made)
    assert load(tmp_path / "rows", MODEL, capacity=40).get_seq_length() == tokens - 1
    with pytest.raises(ValueError, match=f"made for 2 tokens and {tokens - 1} are needed"):
        load(tmp_path / "rows", MODEL, capacity=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("windows", [None, 7]),
        ("windows", [5, None]),
        ("windows", None),
        ("kept", [17, 6]),
        ("kept", [5]),
        ("kept", None),
    ],
)
def test_windows_that_do_not_describe_the_tensors_are_refused(field, value, tmp_path):
    path = tmp_path / "rows"
    save(filled(tokens=17, windows=[None, 5]), path, MODEL)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, {**metadata, field: json.dumps(value)})
    with pytest.raises(ValueError, match="is damaged"):
        load(path, MODEL)


def test_scales_are_a_part_of_the_file(tmp_path):
    path = tmp_path / "rows"
    save(filled(cache_dtype="int8"), path, MODEL)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    changed = {**tensors, "layers.1.scales": tensors["layers.1.scales"] * 2}
    missing = {name: tensor for name, tensor in tensors.items() if name != "layers.0.shared_scales"}
    for wrong in (changed, missing):
        save_file(wrong, path, metadata)
        with pytest.raises(ValueError, match="is damaged"):
            load(path, MODEL)
    save_file(tensors, path, {**metadata, "converts": "false"})
    with pytest.raises(ValueError, match="is damaged"):
        load(path, MODEL)


def test_the_prompt_can_be_held_to_the_prefix(tmp_path):
    ids, path = token_ids(), tmp_path / "rows"
    save(filled(), path, MODEL, ids)
    assert torch.equal(saved_token_ids(path), ids)
    longer = torch.cat([ids, ids[:, :2]], dim=1)
    load(path, MODEL, prompt=longer)
    wrong = longer.clone()
    wrong[2, 5] += 1
    with pytest.raises(ValueError, match="sequence 2 differs at token 5"):
        load(path, MODEL, prompt=wrong)
    for prompt in (ids, longer[:3]):
        with pytest.raises(ValueError, match="holds 4 sequences of 7 tokens and the prompt is"):
            load(path, MODEL, prompt=prompt)
    one = filled()
    one.batch_select_indices(torch.tensor([1]))
    save(one, path, MODEL, ids[1:2])
    load(path, MODEL, prompt=longer[1:2].repeat(3, 1))
    save(one, path, MODEL)
    assert saved_token_ids(path) is None
    with pytest.raises(ValueError, match="saved without token_ids"):
        load(path, MODEL, prompt=longer)


def test_only_rows_are_saved(tmp_path):
    for cache in (RowCache(1, LAYOUTS["shared"], 3), DynamicCache(), RowCache(1, LAYOUTS["shared"], 3, capacity=5)):
        with pytest.raises(ValueError, match=f"no rows to save in this {type(cache).__name__}"):
            save(cache, tmp_path / "rows", MODEL)
    with pytest.raises(ValueError, match=r"token_ids are \[4, 6\] and the cache holds rows of \[4, 7\]"):
        save(filled(), tmp_path / "rows", MODEL, token_ids()[:, 1:])
    assert not list(tmp_path.iterdir())


def test_another_models_rows_are_refused_with_what_differs(tmp_path):
    save(filled(), tmp_path / "rows", MODEL)
    with pytest.raises(ValueError, match="of another model: variant is K=V there and QKV here"):
        load(tmp_path / "rows", {**MODEL, "variant": "QKV"})
    with pytest.raises(ValueError, match="weights is 5eed there and 7ea here; dtype is missing there and float32 here"):
        load(tmp_path / "rows", {**MODEL, "weights": "7ea", "dtype": "float32"})


def test_whatever_byte_changes_the_file_is_refused(tmp_path):
    path = tmp_path / "rows"
    save(filled(tokens=2), path, MODEL, torch.randint(99, (BATCH, 2)))
    sound = path.read_bytes()
    load(path, MODEL)
    for position in range(0, len(sound), 5):
        changed = bytearray(sound)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="rows"):
            load(path, MODEL)
    for length in (*range(0, len(sound), 97), len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(ValueError, match="is damaged"):
            load(path, MODEL)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "rows"
    with pytest.raises(ValueError, match="there is no saved cache at"):
        load(path, MODEL)
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(ValueError, match="is not a saved row cache of this version"):
        load(path, MODEL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout", "separate"),
        ("kv_heads", 1),
        ("length", 6),
        ("layers", 3),
        ("dtype", "float16"),
        ("dtype", "int8"),
        ("sequences", -1),
        ("has_token_ids", True),
    ],
)
def test_metadata_that_does_not_describe_the_tensors_is_refused(field, value, tmp_path):
    path = tmp_path / "rows"
    save(filled(LAYOUTS["shared"]), path, MODEL)
    if field == "layout":
        save(filled(LAYOUTS[value]), path, MODEL)
        with safe_open(path, framework="pt") as other:
            value = json.loads(other.metadata()["layout"])
        save(filled(LAYOUTS["shared"]), path, MODEL)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, {**metadata, field: json.dumps(value)})
    with pytest.raises(ValueError, match="is damaged"):
        load(path, MODEL)


def test_a_failed_save_leaves_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "rows"
    save(filled(), path, MODEL)
    before = path.read_bytes()

    def full(tensors, where, metadata):
        where.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("twofold.cache.saved.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(filled(), path, MODEL)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("rows", before)]
