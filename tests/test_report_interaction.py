"""The pages of studies and of `explain` under a pointer, on a desk and on a phone."""

import pytest

from browser import DESK, PHONE, check_fits, chromium
from synthetic_explanations import HEADS, LAYERS, TOKENS, synthetic_explanation
from synthetic_records import synthetic_record, synthetic_results
from twofold.report.explain_page import write_explanations
from twofold.report.page import write_report

WAIT = 20_000  # milliseconds; other tests run beside

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def opened():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    return write_explanations([synthetic_explanation()], tmp_path_factory.mktemp("explained"))


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    variants = ("QKV", 2.0, 512), ("K=V", 2.1, 256), ("K=V GQA-2", 2.2, 128)
    records = [synthetic_record(name, bits, bytes_per_token=size) for name, bits, size in variants]
    return write_report(synthetic_results(records), tmp_path_factory.mktemp("reported"))


@pytest.mark.parametrize(("width", "scheme"), [(DESK, "dark"), (PHONE, "light")])
def test_a_report_draws_its_figures_and_fits(opened, reported, width, scheme):
    with opened(reported, width, scheme) as page:
        page.wait_for_selector("#figure-frontier svg.main-svg", timeout=WAIT)
        check_fits(page)
        for box in page.locator(".figure").all():
            size = box.bounding_box()
            assert 0 < size["width"] <= width
        ink, paper = page.evaluate(COLOURS)
        assert (ink > paper) == (scheme == "dark")


COLOURS = """() => ["color", "backgroundColor"].map((name) =>
  getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0))"""


def test_pointing_at_the_frontier_tells_a_variants_numbers(opened, reported):
    with opened(reported) as page:
        page.wait_for_selector("#figure-frontier .points path", timeout=WAIT)
        page.locator("#figure-frontier").scroll_into_view_if_needed()
        box = page.locator("#figure-frontier .points path").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#figure-frontier .hoverlayer text", timeout=WAIT)
        assert "QKV" in page.locator("#figure-frontier .hoverlayer").text_content()


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_pointing_at_a_token_shows_what_it_looks_at(opened, explained, width):
    with opened(explained, width) as page:
        check_fits(page)
        tokens = page.locator(".pieces span")
        assert tokens.count() == TOKENS
        (tokens.nth(3).tap if width == PHONE else tokens.nth(3).hover)()
        weights = [float(span.evaluate("one => one.style.getPropertyValue('--weight')")) for span in tokens.all()]
        assert weights == pytest.approx([0.5] * 4 + [0] * 3)  # a query at 3 sees four tokens alike: √(1/4)
        assert "token 3" in page.locator(".said").inner_text()
        assert tokens.nth(3).get_attribute("class") == "query"


def test_choosing_a_layer_and_head_changes_the_map(opened, explained):
    with opened(explained) as page:
        thumbnails = page.locator(".thumbnails button")
        assert thumbnails.count() == len(LAYERS) * HEADS
        thumbnails.nth(HEADS + 2).click()
        assert page.locator(".thumbnails [aria-pressed='true']").count() == 1
        assert page.locator(".reading .layer").input_value() == str(LAYERS[1])
        assert page.locator(".reading .head").input_value() == "2"
