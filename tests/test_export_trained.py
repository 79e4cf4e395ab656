"""A study trains K=V decoupled, the result is exported, and transformers and llama.cpp write what it writes."""

import random
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny_study import CONTEXT, make, spec
from twofold.export.export import GGUF_FILE, export_model
from twofold.models.load import load_model

pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")

STEPS, BATCH, WRITTEN = 60, 4, 40
WORDS = ["def", "return", "self", "import", "os", "(x)", "=", "[1, 2]", "value", "\n"]
GROUPS, DIM, ROTARY, LAYERS = 2, 8, 4, 2


@pytest.fixture(scope="module", params=["bytes", "bpe-280"])
def trained(request, tmp_path_factory):
    """The folder of a run on texts in ASCII, so that what it writes is some."""
    folder, draw = tmp_path_factory.mktemp("trained"), random.Random(0)
    (folder / "texts").mkdir()
    for number in range(8):
        (folder / "texts" / f"{number}.txt").write_text(" ".join(draw.choices(WORDS, k=301)))
    sizes = {"layers": LAYERS, "width": 24, "heads": 4, "head_dim": DIM, "mlp": 31, "rotary_dims": ROTARY}
    study = spec(
        folder / "texts",
        data={
            "source": str(folder / "texts"),
            "context": CONTEXT,
            "held_out": 0.2,
            "tokenizer": request.param,
        },
        model={**sizes, "norm_epsilon": 1e-6},
        variants=["K=V GQA-2 decoupled"],
        tokens=CONTEXT * BATCH * STEPS,
        training={"batch": BATCH, "learning_rate": 1e-2},
    )
    assert make(study, folder / "out") == [("K=V GQA-2 decoupled", 0)]
    return folder / "out" / "runs" / "K=V_GQA-2_decoupled_seed0"


def written(model, tokenizer, prompt):
    """The text that follows the prompt, greedily."""
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=WRITTEN, do_sample=False)
    return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.slow
def test_both_formats_compute_and_write_the_same(trained, tmp_path):
    model, prompt = load_model(trained), "def self"
    records = {form: export_model(model, form, tmp_path / form) for form in ("deepseek", "gguf")}
    for record in records.values():
        assert record.tokenizer
        assert record.check.max_logit_difference < 1e-4
        assert record.check.greedy_equal
        assert record.check.cache_numbers == GROUPS * DIM + ROTARY
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "deepseek")
    text = written(model, tokenizer, prompt)
    assert len(set(text)) > 4
    assert written(AutoModelForCausalLM.from_pretrained(tmp_path / "deepseek").eval(), tokenizer, prompt) == text
    llama = llama_cpp.Llama(str(tmp_path / "gguf" / GGUF_FILE), n_ctx=256, n_threads=1, verbose=False)
    try:
        made = llama.create_completion(prompt, max_tokens=WRITTEN, temperature=0.0, repeat_penalty=1.0)
        assert made["choices"][0]["text"] == text
    finally:
        llama.close()


def test_llama_cpp_says_that_it_caches_latent_and_rotary_key_alone(trained, tmp_path):
    """V 0.00 MiB, and 4·(g·d + r) bytes of K per token and layer."""
    (line,) = export_model(load_model(trained), "gguf", tmp_path / "out").check.engine_log
    cells, layers = map(int, re.search(r"\( *(\d+) cells, +(\d+) layers", line).groups())
    keys, values = map(float, re.search(r"K \(f32\): +([\d.]+) MiB, V \(f32\): +([\d.]+) MiB", line).groups())
    assert layers == LAYERS
    assert values == 0
    assert keys * 2**20 == pytest.approx(cells * layers * 4 * (GROUPS * DIM + ROTARY), abs=0.006 * 2**20)
