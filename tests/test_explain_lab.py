"""A lab's record: which models it takes, and that its script computes what the library computes."""

import base64
import json
import random
import shutil
import subprocess

import numpy as np
import pytest

from lab_numbers import DRIVER, MODELS, SENTENCE, check, expected, save_models
from twofold.explain.lab import LabRun, lab_model, lab_of
from twofold.explain.lab_record import SHARINGS, dtype_bytes, sharing_rows
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.load import load_model
from twofold.report.page import TEMPLATES
from twofold.variants.layout import ITEM_BYTES, cache_bytes, scale_bytes
from twofold.variants.variant import Variant

NODE = shutil.which("node")
SCRIPT = (TEMPLATES / "lab_model.js").read_text()

needs_node = pytest.mark.skipif(NODE is None, reason="the same is checked in the browser")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def lab(folders):
    return lab_of([LabRun(folder, 2.5) for folder in folders], SENTENCE, "twofold lab")


def in_node(expression):
    """What an expression over the page's script comes to."""
    code = f"{SCRIPT}\nprocess.stdout.write(JSON.stringify({expression}));"
    return json.loads(subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=True).stdout)


def told(model, text, factor):
    return in_node(f"({DRIVER})({model.model_dump_json()}, {list(text.encode())}, {factor})")


@needs_node
@pytest.mark.parametrize("factor", [1.0, 0.25, 3.7])
@pytest.mark.parametrize("number", range(len(MODELS)), ids=list(MODELS))
def test_the_script_computes_what_the_library_does(folders, lab, number, factor):
    check(told(lab.models[number], SENTENCE, factor), expected(folders[number], SENTENCE, factor))


@needs_node
def test_another_text_and_weights_of_another_model_do_not_pass(folders, lab):
    found = told(lab.models[0], SENTENCE, 1.0)
    for wanted in (expected(folders[0], SENTENCE[::-1]), expected(folders[0], SENTENCE, 1.01)):
        with pytest.raises(AssertionError):
            check(found, wanted)


@needs_node
def test_without_a_scale_all_tokens_weigh_the_same(lab):
    found = told(lab.models[0], SENTENCE, 0.0)
    count = len(SENTENCE.encode())
    even = np.tril(np.ones((count, count))) / np.arange(1, count + 1)[:, None]
    assert all(np.allclose(weights, even.ravel()) for layer in found["layers"] for weights in layer["maps"])
    assert found["sharpness"]["relative"] == pytest.approx(1)


@needs_node
def test_cache_bytes_are_those_of_the_rows():
    draw, given, wanted = random.Random(5), [], []
    for sharing, row in zip(SHARINGS, sharing_rows(), strict=True):
        for dtype, item in ITEM_BYTES.items():
            layers, heads, dim, tokens, batch = (draw.randint(1, 200) for _ in range(5))
            sizes = {"layers": layers, "kvHeads": heads, "headDim": dim, "tokens": tokens, "sequences": batch}
            given.append({**sizes, "parts": len(row.parts), **dtype_bytes()[dtype].model_dump()})
            layout, scale = Variant(sharing).row_layout(dim), scale_bytes(dtype)
            others = {"layers": layers, "tokens": tokens, "batch": batch}
            wanted.append(cache_bytes(layout, heads, itemsize=item, scale_bytes=scale, **others))
    assert in_node(f"{json.dumps(given)}.map(LabModel.cacheBytes)") == wanted


def test_the_record_holds_every_weight_once(folders, lab):
    for folder, model in zip(folders, lab.models, strict=True):
        numbers = np.frombuffer(base64.b64decode(model.weights), dtype="<f4")
        state = load_model(folder).state_dict()
        names = [place.name for place in model.tensors]
        assert set(state) - set(names) <= {"lm_head.weight"}
        assert ("lm_head.weight" in names) == (model.variant == "QKV")
        start = 0
        for place in model.tensors:
            part = numbers[start : start + np.prod(place.shape)].reshape(place.shape)
            assert np.array_equal(part, state[place.name].numpy())
            start += part.size
        assert start == numbers.size


def test_measured_bytes_are_those_of_the_formula(folders, lab):
    for folder, model in zip(folders, lab.models, strict=True):
        sizes = load_model(folder).config.architecture
        assert model.cache.tokens == len(SENTENCE.encode())
        assert model.cache.bytes_used == sizes.cache_bytes(model.cache.tokens, "float32") <= model.cache.bytes_reserved
    assert [model.bits_per_byte for model in lab.models] == [2.5] * len(MODELS)


def test_models_of_one_variant_are_told_apart(folders, tmp_path):
    other = shutil.copytree(folders[0], tmp_path / "another")
    lab = lab_of([LabRun(folders[0]), LabRun(other / "model")], SENTENCE)
    assert [model.label for model in lab.models] == ["QKV, QKV_seed0", "QKV, another"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"variant": "MLA"}, "the variant MLA"),
        ({"variant": "linear"}, "the variant"),
        ({"variant": "K=V kept"}, "rotary by kept"),
        ({"block": "paper"}, "the paper's block"),
        ({"sliding_window": 5}, "a window"),
        ({"softcap": 30.0}, "a soft cap"),
        ({"qk_norm": True}, "normalised queries"),
        ({"sinks": True}, "sinks"),
        ({"rotary": "none", "position_offset": 2}, "rows before the first position"),
        ({"fused_projections": True}, "stacked projections"),
        ({"vocab_size": 1_000, "hidden_size": 1_200}, "at most 1,000,000 weights"),
    ],
)
def test_what_the_page_does_not_compute_is_refused_by_name(fields, named):
    sizes = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 7}
    model = TwofoldForCausalLM(TwofoldConfig(**{**sizes, **fields}))
    with pytest.raises(ValueError, match=named):
        lab_model(model, SENTENCE)


def test_too_many_models_and_wrong_sentences_are_refused(folders, tmp_path):
    with pytest.raises(ValueError, match="one to 4 models, and 5"):
        lab_of([LabRun(folders[0])] * 5, SENTENCE)
    for text, told_length in (("", "0 bytes"), ("x", "1 bytes"), ("é" * 27, "54 bytes, and this lab reads 2 to 53")):
        with pytest.raises(ValueError, match=told_length):
            lab_of([LabRun(folders[0])], text)
    with pytest.raises(ValueError, match="holds no model"):
        lab_of([LabRun(tmp_path)], SENTENCE)


def test_models_that_read_other_tokens_are_refused(tmp_path):
    from twofold.data.corpus import Document
    from twofold.data.tokenizer import choose

    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 7}
    TwofoldForCausalLM(TwofoldConfig(**sizes, vocab_size=260)).save_pretrained(tmp_path / "model")
    tokenizer = choose("bpe-260", lambda: [Document("a", b"the then them " * 50)])
    tokenizer.for_transformers().save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="a lab types bytes"):
        lab_of([LabRun(tmp_path)], SENTENCE)
