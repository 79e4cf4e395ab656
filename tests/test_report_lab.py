"""The lab's page: it holds its record, loads nothing, and in a browser it does what its controls say."""

import math
import re

import pytest

from browser import DESK, PHONE, check_fits, chromium
from lab_numbers import DRIVER, MODELS, SENTENCE, check, expected, save_models
from pages import ATTACK, MARK, Reader, check_loads_nothing
from twofold.explain.lab import LabRun, lab_model, lab_of
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.report.lab_page import render_lab, write_lab
from twofold.study.load import load_study
from twofold.variants.layout import cache_bytes
from twofold.variants.notation import parse

MOST_BYTES = 1_500_000
STEPS = 8
COUNT = len(SENTENCE.encode())
WAIT = 5_000  # milliseconds


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def lab(folders):
    return lab_of([LabRun(folder, 2.5) for folder in folders], SENTENCE, "twofold lab")


@pytest.fixture(scope="module")
def written(lab, tmp_path_factory):
    return write_lab(lab, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def opened():
    with chromium() as opened:
        yield opened


def test_page_loads_nothing_and_is_made_for_phones_and_both_colour_schemes(written):
    page = written.read_text()
    check_loads_nothing(page)
    assert page.endswith("</html>\n")
    assert "prefers-color-scheme: dark" in page
    assert 'content="width=device-width, initial-scale=1"' in page


def test_hostile_texts_add_no_element_and_no_attribute(lab):
    named = [model.model_copy(update={"label": f"{ATTACK}{n}", "source": ATTACK}) for n, model in enumerate(lab.models)]
    changes = {"models": tuple(named), "sentence": ATTACK, "command": ATTACK, "environment": {"twofold": ATTACK}}
    honest, hostile = Reader(render_lab(lab)), Reader(render_lab(lab.model_copy(update=changes)))
    drop = len(lab.environment) - 1
    assert len(honest.tags) - len(hostile.tags) == 3 * drop  # one row for each fact
    assert set(hostile.tags) == set(honest.tags)
    assert sum(MARK in text for text in hostile.texts) > len(named)
    assert not any(ATTACK in text for kind, text in hostile.scripts if kind == "code")
    shown = [text for kind, text in hostile.scripts if kind == "application/json" and MARK in text]
    assert shown
    assert not any("<" in text for text in shown)


def test_the_page_of_the_built_in_study_is_small(lab):
    spec = load_study("lab")
    models = []
    for contender in spec.contenders:
        config = TwofoldConfig.from_architecture(contender.architecture)
        models.append(lab_model(TwofoldForCausalLM(config), lab.sentence, contender.label))
    page = render_lab(lab.model_copy(update={"models": tuple(models)}))
    assert [model.variant for model in models] == ["QKV", "K=V", "Q=K", "Q=K=V"]
    assert len(page.encode()) < MOST_BYTES


@pytest.mark.system
@pytest.mark.parametrize("number", range(len(MODELS)), ids=list(MODELS))
def test_the_page_computes_what_the_library_does(opened, written, folders, number):
    with opened(written) as page:
        for text, factor in ((SENTENCE, 1.0), ("return [0]", 2.3)):
            record = f'JSON.parse(document.getElementById("lab").textContent).models[{number}]'
            found = page.evaluate(f"({DRIVER})({record}, {list(text.encode())}, {factor})")
            check(found, expected(folders[number], text, factor))


@pytest.mark.system
@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_every_step_of_every_model_draws_and_fits(opened, written, width, scheme):
    with opened(written, width, scheme) as page:
        for model in range(len(MODELS)):
            page.locator(f"#model-{model}").check(force=True)
            for step in range(STEPS):
                page.locator(f"#step-{step}").dispatch_event("click")
                check_fits(page)
                assert page.locator("#step-title").inner_text().startswith(f"{step + 1}. ")
                assert page.locator("#step > *").count() > 0
                page.wait_for_function(PAINTED, timeout=WAIT)


# Grids are drawn once their size is known, which is when the browser gets to a frame.
PAINTED = """() => [...document.querySelectorAll("canvas.grid")].every((canvas) =>
  new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size > 9)"""


@pytest.mark.system
def test_steps_go_by_buttons_and_by_keys(opened, written):
    with opened(written) as page:
        title = page.locator("#step-title")
        page.locator("#next").click()
        assert title.inner_text() == "2. Vectors"
        page.locator("h1").click()
        page.keyboard.press("ArrowRight")
        assert title.inner_text() == "3. q, k, v"
        page.keyboard.press("ArrowLeft")
        page.locator("#back").click()
        assert title.inner_text() == "1. Tokens"
        assert page.locator("#back").is_disabled()
        page.locator("#sentence").press("ArrowRight")  # moves the cursor, and no step
        assert title.inner_text() == "1. Tokens"


@pytest.mark.system
def test_typing_reads_anew_and_says_what_is_left_out(opened, written, folders):
    with opened(written) as page:
        page.locator("#sentence").fill("abc")
        assert page.locator("#tokens button").all_inner_texts() == ["a", "b", "c"]
        assert page.locator("#length").inner_text() == "3 of 53 bytes"
        page.locator("#sentence").press_sequentially(" é")
        assert page.locator("#tokens button").all_inner_texts() == ["a", "b", "c", "␣", "0xc3", "0xa9"]
        page.locator("#sentence").fill("x" * 99)
        assert page.locator("#length").inner_text() == "the first 53 of 99 bytes"
        page.locator("#sentence").fill("")
        assert page.locator("#tokens button").all_inner_texts() == ["␣"]
        page.locator("#sentence").fill("ab")
        page.locator("#token-1").click()
        page.locator("#step-7").click()
        chances = [float(text.removesuffix(" %")) for text in page.locator(".bars .amount").all_inner_texts()[:8]]
        logits = expected(folders[0], "ab")["logits"][1]
        wanted = sorted((math.exp(x - logits.max()) for x in logits), reverse=True)
        assert chances == pytest.approx([100 * x / sum(wanted) for x in wanted[:8]], abs=0.06)
        page.locator("#append").click()
        assert page.locator("#tokens button").count() == 3


@pytest.mark.system
def test_pointing_tells_the_librarys_numbers(opened, written, folders):
    maps = expected(folders[1], SENTENCE)["layers"][1][0].scored.maps_BHTT[0, 4].numpy()
    with opened(written) as page:
        for control in ("model-1", "layer-1", "head-4"):
            page.locator(f"#{control}").check(force=True)
        page.locator("#step-5").click()
        query, key = 8, 3
        hover(page, "#softmax", query, key, COUNT)
        assert page.locator("#softmax-readout").inner_text().endswith(f"{maps[query, key]:.4f}")
        best = maps[query].argmax()
        assert f" at {best}: {maps[query, best]:.3f}" in page.locator("#said").inner_text()
        page.locator("#piece-2").hover()
        assert f" at {maps[2].argmax()}: {maps[2].max():.3f}" in page.locator("#said").inner_text()
        page.locator("#softmax").focus()
        page.keyboard.press("ArrowDown")
        assert page.locator("#softmax-readout").inner_text().endswith(f"{maps[query + 1, key]:.4f}")
        page.keyboard.press("Enter")
        assert page.locator("#token-said").inner_text().endswith(f"at {query + 1}")
        assert page.evaluate("document.activeElement.id") == "softmax"


def hover(page, canvas, row, column, count, gutter=18):
    box = page.locator(canvas).bounding_box()
    x, y = (
        gutter + (place + 0.5) * (box[side] - gutter) / count for place, side in ((column, "width"), (row, "height"))
    )
    page.locator(canvas).hover(position={"x": x, "y": y})


@pytest.mark.system
def test_roles_that_share_are_one_strip(opened, written):
    with opened(written) as page:
        page.locator("#step-2").click()
        for model, strips in enumerate((["q", "k", "v"], ["q", "k = v"], ["q = k", "v"], ["q = k = v"])):
            page.locator(f"#model-{model}").check(force=True)
            badges = page.locator(".box > figure:first-child .badge")
            assert [re.sub(r"\s*=\s*", " = ", text) for text in badges.all_inner_texts()] == strips


@pytest.mark.system
def test_bytes_are_those_of_the_librarys_cache(opened, written, folders):
    with opened(written) as page:
        page.locator("#step-3").click()
        for model, folder in enumerate(folders):
            page.locator(f"#model-{model}").check(force=True)
            used = expected(folder, SENTENCE)["bytes"]
            facts = page.locator("#bytes dd").all_inner_texts()
            assert [f"{used:,}" in text for text in facts] == [False, False, True, True]


@pytest.mark.system
def test_the_scale_moves_softmax_entropy_and_the_bars(opened, written, folders):
    with opened(written) as page:
        seen = []
        for factor in (0, 1, 6):
            page.locator("#factor").fill(str(factor))
            found = [page.locator(f"#sharpness tr:nth-child(2) td:nth-of-type({n})").inner_text() for n in (1, 2, 3)]
            entropy, _, saturated, count = expected(folders[0], SENTENCE, factor or 1e-12)["totals"]
            assert float(found[0]) == pytest.approx(entropy / count, abs=1e-4)
            assert float(found[2].removesuffix(" %")) == pytest.approx(100 * saturated / count, abs=0.06)
            seen.append((float(found[0]), page.locator("#weights").inner_html()))
        assert seen[0][0] > seen[1][0] > seen[2][0]
        assert len({bars for _, bars in seen}) == len(seen)
        page.locator("[data-factor='1']").click()
        assert "as trained" in page.locator("#factor-said").inner_text()
        page.locator("#factor").press("ArrowRight")
        assert page.locator("#factor-said").inner_text().startswith("1.05")
        page.locator("#curve svg .here").wait_for(timeout=WAIT)


@pytest.mark.system
def test_the_context_moves_the_caches_bars(opened, written, lab):
    with opened(written) as page:
        page.locator("#cache-layers").fill("3")
        page.locator("#cache-heads").fill("5")
        page.locator("#cache-dim").fill("7")
        page.locator("#cache-dtype").select_option("int8")
        for exponent in (4, 17):
            page.locator("#context").fill(str(exponent))
            assert page.locator("#context-said").inner_text() == f"{2**exponent:,} tokens"
            shown = page.locator("#cache-bars .amount").all_inner_texts()
            sizes = {"tokens": 2**exponent, "itemsize": 1, "layers": 3, "scale_bytes": 4}
            wanted = [cache_bytes(parse(row.notation).row_layout(7), 5, **sizes) for row in lab.sharings]
            assert [read_bytes(text) for text in shown] == pytest.approx(wanted, rel=1e-3)
        page.locator("#cache-own").click()
        assert page.locator("#cache-heads").input_value() == "6"


def read_bytes(text):
    number, unit = text.replace(",", "").split()
    return float(number) * 1024 ** ("bytes", "KiB", "MiB", "GiB").index(unit)


@pytest.mark.system
def test_a_finger_reads_and_chooses(opened, written):
    with opened(written, PHONE) as page:
        page.locator("#next").tap()
        page.locator("#token-3").tap()
        assert page.locator("#token-said").inner_text().endswith("at 3")
        page.locator("#step-4").tap()
        page.locator("#scores").tap(position={"x": 200, "y": 200})
        assert "is compared: q·k" in page.locator("#scores-readout").inner_text()
        assert not page.locator("#token-said").inner_text().endswith("at 3")
        page.locator("#cache-own").tap()
        assert page.locator("#cache-layers").input_value() == "2"


@pytest.mark.system
def test_every_control_has_a_name(opened, written):
    with opened(written) as page:
        for step in range(STEPS):
            page.locator(f"#step-{step}").dispatch_event("click")
            assert page.evaluate(NAMELESS) == []


NAMELESS = """() => [...document.querySelectorAll("button, input, select, canvas, [role=radiogroup]")].filter((one) =>
  !(one.labels?.length || one.textContent.trim() ||
    ["aria-label", "aria-labelledby"].some((name) => one.getAttribute(name)))).map((one) => one.outerHTML)"""
