"""The page of `twofold explain` shows what the record says, escapes it, and needs nothing but itself."""

import json
import re

import pytest

from pages import ATTACK, MARK, Reader, check_loads_nothing
from synthetic_explanations import HEADS, LAYERS, TOKENS, synthetic_explanation
from test_report_browser import FRAME, MEASURE, PHONE, opened
from twofold.report.explain_figures import depth_figure, families, heads_figure, spectra_figure
from twofold.report.explain_page import render_explanations, write_explanations
from twofold.report.explain_words import FAMILIES, line_name, words_of


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
    assert {name.split("-")[0] for name in figures} == {"similarity", "rank", "circuits", "attention"}
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


def test_figures_hold_the_records_numbers():
    one = synthetic_explanation()
    line = depth_figure([one], [""], "similarity", words_of("similarity", "cka_kv")).data[0]
    assert (list(line.x), list(line.y)) == (list(LAYERS), [1 / 7, 3 / 7, 4 / 7])
    heat = heads_figure(one, "circuits.ov_copying").data[0]
    assert (len(heat.z), len(heat.z[0]), heat.zmin, heat.zmax) == (len(LAYERS), HEADS, -0.7, 0.7)
    spectrum = spectra_figure(one, "rank", "joint_kv_energy").data[0]
    assert (list(spectrum.x), list(spectrum.y)) == ([0, 1, 17], [0, 0.6, 1])
    assert not heads_figure(one, "absent").data


def test_baselines_belong_to_their_family_and_unknown_measures_have_one_of_their_own():
    assert words_of("rank", "k_random") == words_of("rank", "v_most") == words_of("rank", "q")
    assert words_of("rank", "k_stable") != words_of("rank", "k")
    assert line_name("similarity", "r2_v_from_k") == "V from K"
    assert words_of("scale", "new_thing").title == "new thing"
    assert [words.title for words in families([synthetic_explanation()], "attention")] == ["Entropy of the attention"]
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
