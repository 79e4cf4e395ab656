"""The page on generation tells the truth: its Python runs."""

import re
from pathlib import Path

from small_models import small_model
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer

PAGE = Path(__file__).parent.parent / "docs" / "generation.md"


def test_python_runs(tmp_path, monkeypatch):
    model = small_model("K=V MQA", vocab_size=VOCABULARY)
    model.save_pretrained(tmp_path / "runs/mine/model")
    byte_tokenizer().save_pretrained(tmp_path / "runs/mine/model")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["outputs"].shape == (2, names["prompt"].shape[1] + 20)
    assert names["cache"].get_seq_length() == names["prompt"].shape[1] + 19
    assert names["read"].shape == (1, 16, 1, 64)


def test_python_of_the_page_on_variants_runs():
    names = {}
    for code in re.findall(r"```python\n(.*?)```", (PAGE.parent / "variants.md").read_text(), flags=re.DOTALL):
        exec(compile(code, "variants.md", "exec"), names)
    assert names["model"].config.architecture.row_layout.shared_width == 8
    assert names["outputs"].logits.shape == (4, 16, 10)
    assert names["outputs"].loss.isfinite()
