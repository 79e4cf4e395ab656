"""A prefix that was read once, saved and loaded is continued as if it had just been read; by its own model only."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from small_models import PAIRED, STYLES, VARIANTS, formula_bytes, random_ids, randomise, small_model
from twofold.cache.layer import GROWTH
from twofold.cache.saved import load, save
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fingerprint import fingerprint
from twofold.models.fusing import fuse

PREFIX, NEW = 11, 6
TOLERANCE = 1e-9
PADS = (0, 4, 7)

every_model = pytest.mark.parametrize(
    "model", [(v, *style) for v in VARIANTS for style in STYLES], ids="/".join, indirect=True
)


@pytest.fixture
def model(request):
    with torch.no_grad():
        yield small_model(*request.param)


def saved_and_loaded(model, ids, path, mask=None, **arguments):
    cache = model(ids, attention_mask=mask).cache
    save(cache, path, fingerprint(model), ids)
    made = load(path, fingerprint(model), **arguments)
    assert made.bytes_used == formula_bytes(model, tokens=ids.shape[1], batch=len(ids))
    return made


def generate(model, ids, mask=None, **how):
    mask = torch.ones_like(ids) if mask is None else mask
    how = {"max_new_tokens": NEW, "do_sample": False, **how}
    return model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **how)


def padded(length):
    mask = torch.ones(len(PADS), length, dtype=torch.long)
    for row, pad in enumerate(PADS):
        mask[row, :pad] = 0
    return mask


@every_model
@pytest.mark.parametrize("capacity", [None, 31], ids=["growing", "preallocated"])
def test_logits_after_a_loaded_prefix_are_those_of_one_pass(model, capacity, tmp_path):
    ids, mask = random_ids(len(PADS), PREFIX + 5), padded(PREFIX + 5)
    full = model(ids, attention_mask=mask, use_cache=False).logits[:, PREFIX:]
    cache = saved_and_loaded(model, ids[:, :PREFIX], tmp_path / "rows", mask[:, :PREFIX], capacity=capacity)
    for start, stop in ((0, 1), (1, 5)):
        covered = mask[:, : PREFIX + stop]
        logits = model(ids[:, PREFIX + start : PREFIX + stop], attention_mask=covered, cache=cache).logits
        torch.testing.assert_close(logits, full[:, start:stop], rtol=0, atol=TOLERANCE)
    tokens = 31 if capacity else PREFIX + 5
    assert cache.bytes_reserved <= (1 if capacity else GROWTH) * formula_bytes(model, tokens=tokens, batch=len(PADS))


@pytest.mark.parametrize("model", [(v, *style) for v, style in PAIRED], ids="/".join, indirect=True)
def test_generation_from_a_loaded_prefix(model, tmp_path):
    ids, mask = random_ids(len(PADS), PREFIX + 3), padded(PREFIX + 3)
    cache = saved_and_loaded(model, ids[:, :PREFIX], tmp_path / "rows", mask[:, :PREFIX], prompt=ids)
    made = generate(model, ids, mask, cache=cache)
    assert torch.equal(made.sequences, generate(model, ids, mask).sequences)
    assert made.cache is cache
    assert cache.bytes_used == formula_bytes(model, tokens=PREFIX + 3 + NEW - 1, batch=len(PADS))


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("model", [(v, *style) for v, style in PAIRED], ids="/".join, indirect=True)
def test_one_prefix_for_a_whole_batch(model, how, tmp_path):
    prefix, batch = random_ids(1, PREFIX), 4
    prompt = torch.cat([prefix.expand(batch, -1), random_ids(batch, 3, seed=1)], dim=1)
    cache = saved_and_loaded(model, prefix, tmp_path / "rows", prompt=prompt)
    cache.batch_repeat_interleave(batch * how.get("num_beams", 1))
    made = generate(model, prompt, cache=cache, **how)
    assert torch.equal(made.sequences, generate(model, prompt, **how).sequences)
    rows = batch * how.get("num_beams", 1)
    assert cache.bytes_used == formula_bytes(model, tokens=PREFIX + 3 + NEW - 1, batch=rows)
    assert cache.bytes_reserved <= GROWTH * cache.bytes_used


def test_beams_without_repeating_say_what_to_do(tmp_path):
    model = small_model()
    with torch.no_grad():
        cache = saved_and_loaded(model, random_ids(1, PREFIX), tmp_path / "rows")
    with pytest.raises(ValueError, match=r"rows of 1 sequences and got rows of 3: .*batch_repeat_interleave"):
        generate(model, random_ids(1, PREFIX + 3), cache=cache, num_beams=3)


# The fingerprint ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_a_fingerprint_survives_saving_and_compiling(tied, dtype, tmp_path):
    model = small_model("K=V GQA-2", tie_word_embeddings=tied).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    compiled = small_model("K=V GQA-2", tie_word_embeddings=tied).to(dtype)
    compiled.model.layers[0] = torch.compile(compiled.model.layers[0], backend="eager")
    expected = fingerprint(model)
    for other in (loaded, model.model, compiled, torch.compile(model, backend="eager")):
        assert fingerprint(other) == expected


def test_every_weight_below_the_head_counts():
    model = small_model("K=V MQA", tie_word_embeddings=False, block="paper")
    before = fingerprint(model)
    for name, parameter in model.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[-1] += 1e-6
        assert (fingerprint(model) != before) == (not name.startswith("lm_head")), name
        parameter.data = kept
    assert fingerprint(model) == before


DIFFERENT = {
    "variant": {"variant": "Q=K=V"},
    "rotary": {"rotary": "none"},
    "rotary_base": {"rope_theta": 10_001.0},
    "norm_epsilon": {"norm_eps": 1e-6},
    "layers": {"num_hidden_layers": 3},
    "head_dim": {"head_dim": 8},
    "mlp": {"intermediate_size": 19},
    "weights": {},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_model_is_refused_by_name(name, tmp_path):
    model, other = small_model("K=V"), small_model(**{"variant": "K=V", **DIFFERENT[name]})
    if name == "weights":
        randomise(other, 0.49)
    with torch.no_grad():
        save(model(random_ids(1, 5)).cache, tmp_path / "rows", fingerprint(model))
    with pytest.raises(ValueError, match=rf"holds rows of another model: .*{name} is \S+ there and \S+ here"):
        load(tmp_path / "rows", fingerprint(other))


def test_another_dtype_or_fused_projections_are_refused(tmp_path):
    model = small_model("K=V")
    with torch.no_grad():
        save(model(random_ids(1, 5)).cache, tmp_path / "rows", fingerprint(model))
    with pytest.raises(ValueError, match="fused_projections is False there and True here"):
        load(tmp_path / "rows", fingerprint(fuse(model)))
    with pytest.raises(ValueError, match="dtype is float64 there and float32 here"):
        load(tmp_path / "rows", fingerprint(model.float()))


def test_a_change_that_shapes_no_row_changes_no_fingerprint():
    one = small_model("K=V", dropout=0.1, max_position_embeddings=99, attn_implementation="eager")
    assert isinstance(one, TwofoldForCausalLM)
    assert fingerprint(one) == fingerprint(small_model("K=V"))
