"""The page of `twofold explain` shows what the record says, escapes it, and needs nothing but itself."""

import json
import re

import pytest

from browser import DESK, check_fits, chromium
from pages import ATTACK, MARK, Reader, check_loads_nothing
from synthetic_explanations import HEADS, LAYERS, TOKENS, synthetic_explanation
from test_report_browser import FRAME, MEASURE, PHONE, opened
from twofold.report.explain_families import FAMILIES
from twofold.report.explain_figures import depth_figure, families, heads_figure, spectra_figure
from twofold.report.explain_page import render_explanations, write_explanations
from twofold.report.explain_sharing import sharing_figure
from twofold.report.explain_words import line_name, words_of


@pytest.fixture(scope="module")
def page():
    return render_explanations([synthetic_explanation()])


def ids(page, kind):
    found = [value for _, name, value in Reader(page).attributes if name == "id"]
    assert len(found) == len(set(found))
    return {value.removeprefix(f"{kind}-") for value in found if value.startswith(f"{kind}-")}


@pytest.mark.parametrize("count", [1, 2])
def test_hostile_texts_add_no_element_and_no_attribute(count):
    honest = Reader(render_explanations([synthetic_explanation(measure="m")] * count))
    page = render_explanations([synthetic_explanation(text=ATTACK, measure=f"m{ATTACK}")] * count)
    hostile = Reader(page)
    assert hostile.tags == honest.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in honest.attributes]
    assert sum(MARK in text for text in hostile.texts) > 10
    assert not any(ATTACK in text for kind, text in hostile.scripts if kind == "code")
    shown = [text for kind, text in hostile.scripts if kind == "application/json" and MARK in text]
    assert shown
    assert not any("<" in text for text in shown)


def test_page_loads_nothing_and_is_made_for_phones_and_both_colour_schemes(page):
    check_loads_nothing(page)
    assert "prefers-color-scheme: dark" in page
    assert 'content="width=device-width, initial-scale=1"' in page


def test_every_figure_has_its_data_and_a_caption(page):
    figures = ids(page, "figure")
    assert figures == ids(page, "data") == ids(page, "caption")
    assert {name.split("-")[0] for name in figures} == {"similarity", "rank", "circuits", "attention", "sharing"}
    assert not any("random" in text for text in re.findall("<h3>(.*?)</h3>", page))


def test_page_shows_the_numbers_the_text_the_cost_and_the_command(page):
    text = " ".join("".join(Reader(page).texts).split())
    for part in ("1,234,567", "7,654,321", "93,728", "twofold explain made-up", "a" * 64, "story.txt", "made up"):
        assert part in text
    assert "overlap 0.38, random ones 0.11" in text


def test_maps_are_in_the_page_in_thousandths(page):
    data = next(json.loads(text) for _, text in Reader(page).scripts if text.startswith('{"pieces"'))
    assert len(data["pieces"]) == TOKENS
    assert [(one["layer"], one["head"]) for one in data["maps"]] == [(la, h) for la in LAYERS for h in range(HEADS)]
    assert data["maps"][0]["rows"][2] == [333, 333, 333]


def test_a_model_that_read_nothing_has_no_place_for_maps():
    bare = synthetic_explanation().model_copy(update={"text": None, "maps": (), "cost": None})
    page = render_explanations([bare])
    assert 'class="reading"' not in page
    assert 'id="cost"' not in page


def test_two_models_share_figures_over_layers_and_are_told_apart():
    models = [synthetic_explanation("one"), synthetic_explanation("two")]
    words = words_of("similarity", "overlap_kv")
    names = [line.name for line in depth_figure(models, ["A", "B"], "similarity", words).data]
    assert names == ["K–V, A", "K–V, random, A", "K–V, B", "K–V, random, B"]
    page = render_explanations(models)
    assert len(ids(page, "reading")) == 2 * len({"reading", "data"})


def test_the_largest_possible_is_told_apart_from_random_matrices():
    lines = depth_figure([synthetic_explanation()], [""], "rank", words_of("rank", "k")).data
    assert {line.name: line.line.dash for line in lines} == {
        "K": "solid",
        "K, most possible": "dashdot",
        "K, random": "dot",
    }


def test_captions_speak_of_dotted_lines_only_where_lines_are(page):
    captions = re.findall(r'<figcaption id="caption-(.*?)">(.*?)</figcaption>', page)
    dotted = {id for id, said in captions if "dotted" in said.lower()}
    assert dotted
    assert not [id for id in dotted if "-heads-" in id or "-list-" in id]
    heads = [words for known in FAMILIES.values() for words in known if words.lines]
    assert all("otted" not in words.short_caption and "otted" in words.caption for words in heads)


def test_the_view_of_attention_says_how_many_tokens_it_shows(page):
    assert f"Of the text’s 31 tokens the first {TOKENS} are shown." in page


def test_figures_hold_the_records_numbers():
    one = synthetic_explanation()
    line = depth_figure([one], [""], "similarity", words_of("similarity", "cka_kv")).data[0]
    assert (list(line.x), list(line.y)) == (list(LAYERS), [1 / 7, 3 / 7, 4 / 7])
    heat = heads_figure(one, "circuits.ov_copying").data[0]
    assert (len(heat.z), len(heat.z[0]), heat.zmin, heat.zmax) == (len(LAYERS), HEADS, -0.7, 0.7)
    spectrum = spectra_figure(one, "rank", "joint_kv_energy").data[0]
    assert (list(spectrum.x), list(spectrum.y)) == ([0, 1, 17], [0, 0.6, 1])
    assert not heads_figure(one, "absent").data
    spectrum = spectra_figure(one, "rank", "k_spectrum").data[1]
    assert (list(spectrum.x), list(spectrum.y)) == ([1, 5, 17], [1, 3 / 7, 0.1])
    (points,) = sharing_figure(one).data  # of one layer no loss is known, and of the other way none
    assert (list(points.x), list(points.y)) == ([1 / 7, 4 / 7], [1 / 21, 4 / 21])
    assert list(points.customdata) == [0, 3]


def test_what_was_foretold_of_sharing_is_told_with_its_correlation_also_where_it_is_small(page):
    text = " ".join("".join(Reader(page).texts).split())
    assert "one matrix for both by joint_predicted: −0.25 [−0.75, 0.50]" in text
    assert "values from keys by 1: none of 3 layers" in text


def test_baselines_belong_to_their_family_and_unknown_measures_have_one_of_their_own():
    assert words_of("rank", "k_random") == words_of("rank", "v_most") == words_of("rank", "q")
    assert words_of("rank", "k_stable") != words_of("rank", "k")
    assert line_name("similarity", "r2_v_from_k") == "V from K"
    assert words_of("scale", "new_thing").title == "new thing"
    found = [words.title for words in families([synthetic_explanation()], "attention")]
    assert found == ["Entropy of the attention", "Which way heads look"]
    assert line_name("circuits", "probe_token_k_random") == "K, random"
    assert line_name("circuits", "probe_token_chance") == "chance"
    assert words_of("circuits", "probe_previous_chance") == words_of("circuits", "probe_previous_v")
    assert all(words.reading.endswith(".") for known in FAMILIES.values() for words in known)


def test_the_page_is_written_whole(tmp_path):
    path = write_explanations([synthetic_explanation()], tmp_path / "new")
    assert path.read_text().endswith("</html>\n")
    assert [each.name for each in path.parent.iterdir()] == ["explain.html"]


@pytest.mark.system
@pytest.mark.parametrize("count", [1, 2])
def test_page_draws_itself_silently_and_is_no_wider_than_a_phone(tmp_path, count):
    page = render_explanations([synthetic_explanation(text="<b>" + "long" * 30)] * count)
    (tmp_path / "report.html").write_text(page + MEASURE)
    (tmp_path / "frame.html").write_text(FRAME)
    document, console = opened(tmp_path / "frame.html", tmp_path)
    assert console == []
    width, drawings = re.search(r'data-measured="(\d+) (\d+)"', document).groups()
    assert int(width) == PHONE
    assert int(drawings) >= len(ids(page, "figure"))


@pytest.mark.system
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_attention_over_tokens_is_shown_by_pointer_touch_and_keyboard(tmp_path, width):
    path = write_explanations([synthetic_explanation()], tmp_path)
    with chromium() as opening, opening(path, width) as page:
        check_fits(page)
        said, pieces = page.locator(".said"), page.locator(".pieces span")
        assert pieces.count() == TOKENS
        if width == PHONE:
            pieces.nth(2).tap()
        else:
            pieces.nth(2).hover()
        assert said.inner_text().startswith("token 2 ")
        page.locator(".pieces").focus()
        for key, place in (
            ("ArrowRight", 3),
            ("ArrowLeft", 2),
            ("End", TOKENS - 1),
            ("ArrowRight", TOKENS - 1),
            ("Home", 0),
        ):
            page.keyboard.press(key)
            assert said.inner_text().startswith(f"token {place} ")
            assert page.locator(".pieces span.query").count() == 1
        page.locator(".thumbnails button").nth(HEADS + 1).focus()
        page.keyboard.press("Enter")
        assert page.locator("select.layer").input_value() == str(LAYERS[1])
        assert page.locator("select.head").input_value() == "1"
        page.locator("select.head").select_option("3")
        pressed = page.locator('.thumbnails button[aria-pressed="true"]')
        assert pressed.get_attribute("title") == f"layer {LAYERS[1]} head 3"
