"""The lab's page in a browser at its edges: the last byte, the full sentence, sizes out of bounds, an old curve."""

import base64
import math

import numpy as np
import pytest

from browser import chromium
from lab_numbers import SENTENCE, expected, save_models
from twofold.explain.lab import LabRun, lab_of
from twofold.report.lab_page import write_lab

WAIT = 5_000  # milliseconds


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def lab(folders):
    return lab_of([LabRun(folder) for folder in folders], SENTENCE)


@pytest.fixture(scope="module")
def written(lab, tmp_path_factory):
    return write_lab(lab, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def opened():
    with chromium() as opened:
        yield opened


@pytest.mark.system
def test_the_likeliest_byte_is_typed_after_the_last_token_alone(opened, written, folders):
    with opened(written) as page:
        page.locator("#step-7").click()
        button, said = page.locator("#append"), page.locator("#append-said")
        page.locator("#sentence").fill("abc")
        page.locator("#token-0").click()
        assert button.is_disabled()
        assert said.inner_text() == "Choose the last token to type what follows it."
        page.locator("#sentence").fill("")  # read as a space
        button.click()
        text = page.locator("#sentence").input_value()
        assert len(text) == 2
        assert text[0] == " "
        for _ in range(3):
            text += printable(expected(folders[0], text)["logits"][-1])
            button.click()
            assert page.locator("#sentence").input_value() == text
        page.locator("#sentence").fill("x" * 52)
        page.locator("#token-51").click()
        button.click()
        assert button.is_disabled()
        assert said.inner_text() == "The sentence is full: 53 bytes are read, and no more."
        assert len(page.locator("#sentence").input_value()) == 53


def printable(logits):
    return chr(max(range(32, 127), key=lambda byte: logits[byte]))


@pytest.mark.system
def test_a_byte_that_no_field_holds_is_never_typed(opened, lab, tmp_path):
    undecided = without_head(lab.models[0])
    with opened(write_lab(lab.model_copy(update={"models": (undecided,), "sentence": "a"}), tmp_path)) as page:
        page.locator("#step-7").click()
        shown = page.locator(".bars .name").all_inner_texts()[:8]
        assert not any(len(name) == 1 and 32 < ord(name) < 127 for name in shown)
        page.locator("#append").click()
        assert " " <= page.locator("#sentence").input_value()[1] <= "~"


def without_head(model):
    """The same decoder with a head of zeros, so that all bytes are equally likely and 0 to 7 come first."""
    numbers = np.frombuffer(base64.b64decode(model.weights), "<f4").copy()
    start = 0
    for tensor in model.tensors:
        stop = start + math.prod(tensor.shape)
        if tensor.name == "lm_head.weight":
            numbers[start:stop] = 0
        start = stop
    return model.model_copy(update={"weights": base64.b64encode(numbers.tobytes()).decode()})


@pytest.mark.system
def test_the_curve_is_never_another_sentences_or_models(opened, written):
    with opened(written) as page:
        here, line = page.locator("#curve svg .here"), page.locator("#curve svg .line")
        here.wait_for(timeout=WAIT)
        first = line.get_attribute("d")
        assert page.evaluate(TYPED, "abc") == 0
        here.wait_for(timeout=WAIT)
        assert line.get_attribute("d") != first
        assert page.evaluate(CHOSEN) == 0
        here.wait_for(timeout=WAIT)
        assert page.evaluate(TYPED, "a") == 0
        page.wait_for_timeout(500)
        assert page.locator("#curve svg").count() == 0  # one token has none


TYPED = """(text) => {
  const field = document.getElementById("sentence");
  field.value = text;
  field.dispatchEvent(new Event("input"));
  return document.querySelectorAll("#curve svg").length;
}"""
CHOSEN = """() => {
  document.getElementById("model-1").click();
  return document.querySelectorAll("#curve svg").length;
}"""


@pytest.mark.system
def test_sizes_stay_within_their_bounds_and_are_shown_as_they_are_used(opened, written):
    with opened(written) as page:
        for field, typed, kept in (
            ("sequences", "0", "1"),
            ("layers", "-5", "1"),
            ("heads", "1.7", "1"),
            ("dim", "1e9", "4096"),
        ):
            page.locator(f"#cache-{field}").fill(typed)
            assert page.locator(f"#cache-{field}").input_value() == kept
        page.locator("#cache-dtype").select_option("int8")
        formula = page.locator("#cache-formula").inner_text()
        assert formula.startswith("1 sequence × 1 layer × 32,768 tokens × 1 head × 4,096 dims × 1 byte, ")
        page.locator("#cache-dim").fill("")
        assert page.locator("#cache-dim").input_value() == ""  # while it is typed in
        page.locator("#cache-dim").blur()
        assert page.locator("#cache-dim").input_value() == "1"
        assert " × 1 dim × " in page.locator("#cache-formula").inner_text()
