"""Ways to generate beyond the plain ones: streaming, assistants, compiled forward, other dtypes, what is refused.

Sampling, beams, prompt lookup, chunked prefill and static caches are in `test_models_generation.py`.
"""

import threading

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer
from transformers.cache_utils import EncoderDecoderCache

from small_models import PAIRED, formula_bytes, random_ids, small_model
from twofold.cache.layer import GROWTH, RowLayer
from twofold.cache.row_cache import RowCache
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer
from twofold.variants.layout import RowLayout, cache_bytes, scale_bytes

PROMPT, NEW = 7, 23

every_variant = pytest.mark.parametrize(("variant", "style"), PAIRED)


def generate(model, ids, **how):
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False, **how}
    return model.generate(ids, return_dict_in_generate=True, **how)


def assert_rows_are_stored_once(model, cache, tokens, batch=1):
    assert isinstance(cache, RowCache)
    assert len({layer.storage_id for layer in cache.layers}) == model.config.num_hidden_layers
    assert cache.get_seq_length() == tokens
    assert cache.bytes_used == formula_bytes(model, tokens=tokens, batch=batch)
    assert cache.bytes_reserved <= GROWTH * cache.bytes_used


# Streaming ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture
def writer():
    return small_model("K=V GQA-2", vocab_size=VOCABULARY)


def encoded(tokenizer, text):
    return tokenizer(text, return_tensors="pt").input_ids


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_a_streamed_text_is_the_text(writer, tokenizer, skip_prompt, capsys):
    ids = encoded(tokenizer, "def größer(")
    streamer = TextStreamer(tokenizer, skip_prompt=skip_prompt)
    made = generate(writer, ids, streamer=streamer, do_sample=True, max_new_tokens=70)
    start = ids.shape[1] if skip_prompt else 0
    assert capsys.readouterr().out == tokenizer.decode(made.sequences[0, start:]) + "\n"
    assert_rows_are_stored_once(writer, made.cache, made.sequences.shape[1] - 1)


def test_a_text_is_streamed_to_another_thread(writer, tokenizer):
    ids, results = encoded(tokenizer, "class A:"), []
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    thread = threading.Thread(target=lambda: results.append(generate(writer, ids, streamer=streamer)))
    thread.start()
    text = "".join(streamer)
    thread.join()
    expected = generate(writer, ids)
    assert text == tokenizer.decode(expected.sequences[0, ids.shape[1] :])
    assert torch.equal(results[0].sequences, expected.sequences)


# Assisted decoding ----------------------------------------------------------------------------------------------


class Assistant:
    """A model that assists, and every cache that it made for itself."""

    def __init__(self, model, monkeypatch):
        self.model, self.caches = model, []
        make = model.model.new_cache

        def remembered(*args, **kwargs):
            self.caches.append(make(*args, **kwargs))
            return self.caches[-1]

        monkeypatch.setattr(model.model, "new_cache", remembered)


@pytest.mark.parametrize(
    ("kind", "capacity"), [("smaller", None), ("itself", None), ("nearly itself", None), ("nearly itself", 61)]
)
@every_variant
def test_assisted_decoding_equals_greedy(variant, style, kind, capacity, monkeypatch):
    model, ids = small_model(variant, *style), random_ids(1, PROMPT)
    smaller = {"variant": "K=V MQA", "num_hidden_layers": 1, "hidden_size": 11}
    assistant = small_model(*([] if kind == "smaller" else [variant, *style]), **(smaller if kind == "smaller" else {}))
    if kind == "nearly itself":  # some of its proposals are taken, and some are not
        with torch.no_grad():
            assistant.model.layers[-1].mlp.down_proj.weight *= 0.5
    helper = Assistant(assistant, monkeypatch)
    expected = generate(model, ids).sequences
    given = {} if capacity is None else {"cache": model.model.new_cache(capacity)}
    made = generate(model, ids, assistant_model=helper.model, **given)
    assert torch.equal(made.sequences, expected)
    cached = made.cache.get_seq_length()
    assert cached in (PROMPT + NEW - 1, PROMPT + NEW)  # the last proposal was read, if it was taken
    if capacity is None:
        assert_rows_are_stored_once(model, made.cache, cached)
    else:
        assert made.cache.bytes_reserved == formula_bytes(model, tokens=capacity, batch=1)
    (cache,) = helper.caches
    assert_rows_are_stored_once(helper.model, cache, cache.get_seq_length())


# Offloading -----------------------------------------------------------------------------------------------------


class Travelling(RowLayer):
    """Fetched before each use and sent away after it, as an offloading cache does; each way makes a copy."""

    def update(self, key_states, value_states, *args, **kwargs):
        self.prefetch()
        seen = super().update(key_states, value_states)
        self.offload()
        return seen

    def offload(self):
        super().offload()
        self._replace(torch.clone)

    def prefetch(self):
        super().prefetch()
        self._replace(torch.clone)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=str)
@every_variant
def test_rows_that_are_sent_away_between_uses_come_back(variant, style, how):
    model, ids = small_model(variant, *style), random_ids(1, PROMPT)
    cache = model.model.new_cache()
    for layer in cache.layers:
        layer.__class__ = Travelling
    made = generate(model, ids, cache=cache, **how)
    assert torch.equal(made.sequences, generate(model, ids, **how).sequences)
    assert_rows_are_stored_once(model, cache, cache.get_seq_length(), batch=how.get("num_beams", 1))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is somewhere else to keep the rows")
def test_offloading_is_refused_where_rows_are_on_the_cpu_already():
    model, message = small_model(), "leave the offloading out, or move the model to an accelerator"
    for name in ("offloaded", "offloaded_static"):
        with pytest.raises(ValueError, match=message):
            generate(model, random_ids(1, PROMPT), cache_implementation=name)
    with pytest.raises(ValueError, match=message):
        model.model.new_cache(offloading=True)


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("name", ["offloaded", "offloaded_static"])
@every_variant
def test_an_offloaded_cache_keeps_its_rows_on_the_cpu(variant, style, name):
    model = small_model(variant, *style).to(torch.accelerator.current_accelerator())
    ids = random_ids(2, PROMPT).to(model.device)
    made = generate(model, ids, cache_implementation=name)
    assert torch.equal(made.sequences, generate(model, ids).sequences)
    assert made.cache.layers[0].kept().heads_BGSW.device.type == "cpu"
    assert made.cache.bytes_used == formula_bytes(model, tokens=PROMPT + NEW - 1, batch=2)


@pytest.mark.parametrize("name", ["quantized", "sliding_window", "hybrid_chunked"])
def test_caches_that_would_store_something_else_are_refused(name):
    with pytest.raises(ValueError, match=f"cache_implementation='{name}' stores something else: leave it out, or"):
        generate(small_model(), random_ids(1, PROMPT), cache_implementation=name)


def test_continuous_batching_is_refused():
    model, ids = small_model(), random_ids(1, PROMPT)
    for act in (lambda: generate(model, ids, cache_implementation="paged"), lambda: model.generate_batch(ids.tolist())):
        with pytest.raises(ValueError, match="stores keys and values in pages, and a Twofold model caches rows"):
            act()


def test_what_is_no_cache_of_layers_is_refused():
    model, ids = small_model(), random_ids(1, PROMPT)
    rows = model.model.new_cache()
    for cache in (((torch.ones(1), torch.ones(1)),), EncoderDecoderCache(rows, rows)):
        with pytest.raises(ValueError, match=f"this {type(cache).__name__} cannot be made to"):
            model(ids, cache=cache)


def test_sequences_repeated_in_inference_mode_can_be_continued_outside_of_it():
    model, ids = small_model("K=V"), random_ids(2, 9)
    with torch.inference_mode():
        cache = model(ids[:, :PROMPT]).cache
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 2]))
        for layer in cache.layers:
            layer.offload()
            layer.prefetch()
    with torch.no_grad():
        logits = model(ids[:, PROMPT:], cache=cache).logits
        torch.testing.assert_close(logits, model(ids).logits[:, PROMPT:], rtol=0, atol=1e-9)


# torch.compile --------------------------------------------------------------------------------------------------


@pytest.mark.system  # compiling takes longer than the rest of this file
def test_a_compiled_forward_takes_any_prompt_and_is_compiled_a_few_times():
    """Backend `eager`, which traces and guards as every backend does; building kernels would take minutes here."""
    model = small_model("K=V GQA-2", num_hidden_layers=1)
    prompts = [random_ids(1, length, seed=length) for length in (7, 9, 12, 31)]
    expected = [generate(model, ids).sequences for ids in prompts]
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)

    def check(index, cache):
        assert torch.equal(generate(model, prompts[index], cache=cache).sequences, expected[index])
        assert cache.bytes_reserved == formula_bytes(model, tokens=64, batch=1)
        cache.reset()
        return cache

    cache = check(0, model.model.new_cache(capacity=64))
    check(1, model.model.new_cache(capacity=64))
    check(2, cache)
    # The first prompt, a step at any length, any prompt, and any prompt into a cache that is allocated already.
    assert counters["stats"]["unique_graphs"] <= 4
    with torch._dynamo.config.patch(error_on_recompile=True):
        check(3, model.model.new_cache(capacity=64))
        check(3, cache)
        check(0, cache)
    assert not counters["graph_break"]
    torch._dynamo.reset()


# Rows in another dtype than the model's -------------------------------------------------------------------------

ROUNDING = {torch.bfloat16: (0.02, 0.1), torch.float16: (0.003, 0.02), torch.float32: (1e-6, 1e-5)}
"""Root mean square and largest difference, in deviations of the logits: what roundings of 2⁻⁹, 2⁻¹², 2⁻²⁴ become."""


@pytest.mark.parametrize("capacity", [None, 31], ids=["growing", "preallocated"])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@every_variant
def test_rows_are_converted_when_that_is_asked_for(variant, style, dtype, capacity):
    model, ids = small_model(variant, *style), random_ids(3, 17)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter /= 5 if parameter.ndim > 1 else 1  # scores of an ordinary size
        exact = model(ids, use_cache=False).logits
        whole = model(ids, cache=model.model.new_cache(capacity, dtype=dtype)).logits
        cache = model.model.new_cache(capacity, dtype=dtype)
        steps = torch.cat([model(part, cache=cache).logits for part in ids.split([5, 1, 1, 10], dim=1)], dim=1)
    torch.testing.assert_close(steps, whole, rtol=0, atol=1e-9)  # what is read was rounded once, however it came in
    error = (whole - exact) / exact.std()
    assert 0 < error.square().mean().sqrt() <= ROUNDING[dtype][0]
    assert error.abs().max() <= ROUNDING[dtype][1]
    sizes = model.config.architecture
    per_token = cache_bytes(sizes.row_layout, sizes.kv_heads, tokens=1, itemsize=dtype.itemsize, layers=2, batch=3)
    assert cache.bytes_used == 17 * per_token
    assert cache.bytes_reserved == 31 * per_token if capacity else cache.bytes_reserved <= GROWTH * 17 * per_token


def test_a_wider_cache_changes_nothing():
    model, ids = small_model("K=V GQA-2").float(), random_ids(2, PROMPT)
    wide = generate(model, ids, cache=model.model.new_cache(dtype=torch.float64))
    assert torch.equal(wide.sequences, generate(model, ids).sequences)
    assert wide.cache.bytes_used == 2 * formula_bytes(model, tokens=PROMPT + NEW - 1, batch=2)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_generation_with_converted_rows_is_that_of_rounded_rows(how, dtype):
    model, ids = small_model("K=V"), random_ids(1, 5).repeat(1, 3)
    made = [generate(model, ids, cache=model.model.new_cache(n, dtype=dtype), **how) for n in (None, 61)]
    assert torch.equal(made[0].sequences, made[1].sequences)
    assert {layer.kept().heads_BGSW.dtype for layer in made[0].cache.layers} == {getattr(torch, dtype)}


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2"])
def test_generation_with_int8_rows_takes_their_bytes_and_is_that_of_rounded_rows(variant):
    """Each token is the likeliest one of a pass that reads all of them at once into an int8 cache."""
    model, ids = small_model(variant), random_ids(2, PROMPT)
    made = generate(model, ids, cache=model.model.new_cache(dtype="int8"))
    sizes = model.config.architecture
    expected = cache_bytes(
        sizes.row_layout,
        sizes.kv_heads,
        tokens=PROMPT + NEW - 1,
        itemsize=1,
        layers=sizes.layers,
        batch=2,
        scale_bytes=scale_bytes("int8"),
    )
    assert made.cache.bytes_used == expected
    assert made.cache.bytes_reserved <= GROWTH * expected
    with torch.no_grad():
        again = model(made.sequences[:, :-1], cache=model.model.new_cache(dtype="int8")).logits
    assert torch.equal(again[:, PROMPT - 1 :].argmax(-1), made.sequences[:, PROMPT:])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float8_e4m3fn, torch.complex64, torch.bool, "int16"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=rf"rows can be kept in float64, .* and not in {dtype}"):
        RowCache(1, RowLayout.shared(5), 3, dtype=dtype)


def test_nothing_is_converted_that_was_not_asked_for():
    ids = random_ids(1, PROMPT)
    with torch.no_grad():
        cache = small_model("K=V").float()(ids).cache
        with pytest.raises(ValueError, match=r"holds torch\.float32 rows and got torch\.float64: .*new_cache\(dtype"):
            small_model("K=V")(ids, cache=cache)


# Autocast -------------------------------------------------------------------------------------------------------


@every_variant
def test_autocast_caches_rows_in_its_dtype(variant, style):
    model, ids = small_model(variant, *style).float(), random_ids(2, 17)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter /= 5 if parameter.ndim > 1 else 1
        with torch.autocast("cpu", torch.bfloat16):
            full = model(ids, use_cache=False).logits.float()
            cache = model.model.new_cache()
            steps = [model(part, cache=cache).logits for part in ids.split([7, 1, 1, 8], dim=1)]
            made = generate(model, ids)
    assert {layer.kept().heads_BGSW.dtype for layer in cache.layers} == {torch.bfloat16}
    assert cache.bytes_used == formula_bytes(model, tokens=17, batch=2) // 2
    assert made.cache.bytes_used == formula_bytes(model, tokens=17 + NEW - 1, batch=2) // 2
    error = (torch.cat(steps, dim=1).float() - full) / full.std()
    assert error.square().mean().sqrt() <= 0.02
    assert error.abs().max() <= 0.15


def test_rows_made_under_autocast_are_not_continued_without():
    model, ids = small_model("K=V").float(), random_ids(1, PROMPT)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cache = model(ids).cache
    with torch.no_grad(), pytest.raises(ValueError, match=r"holds torch\.bfloat16 rows and got torch\.float32"):
        model(ids, cache=cache, attention_mask=torch.ones(1, 2 * PROMPT))
