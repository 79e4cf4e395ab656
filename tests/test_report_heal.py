"""The page and the tables of a healing say what its record says, and the page needs nothing but itself."""

import pytest
from pydantic import ValidationError

from browser import DESK, PHONE, check_fits, chromium
from pages import ATTACK, MARK, Reader, check_loads_nothing
from synthetic_healings import STEP, synthetic_healing
from twofold.cli.heal_tables import heal_tables, models_grid, trainings_grid
from twofold.healing.record import HealRecord
from twofold.report import heal_page
from twofold.report.heal_page import cache_figure, heal_figure, render_heal, write_heal_page


def test_hostile_texts_add_no_element_and_no_attribute():
    honest, hostile = Reader(render_heal(synthetic_healing())), Reader(render_heal(synthetic_healing(ATTACK)))
    assert hostile.tags == honest.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in honest.attributes]
    assert sum(MARK in text for text in hostile.texts) >= 5
    assert not any(ATTACK in text for kind, text in hostile.scripts if kind == "code")


def test_it_loads_nothing_and_has_the_numbers():
    page = render_heal(synthetic_healing())
    check_loads_nothing(page)
    text = " ".join("".join(Reader(page).texts).split())
    for part in ("14.375", "11.750", "345.625", "7,680", "33.3 %", "71.9 ± 1.2 %", "a" * 64, "somewhere", "0.4375"):
        assert part in text
    assert "With 33.3 % of the teacher’s cache, perplexity 14.38 after healing, 345.62 before it; the control’s" in text
    assert "perplexity, healed to control" in text


@pytest.mark.parametrize("control", [True, False])
def test_the_figure_has_a_curve_for_each_that_was_trained(control):
    record = synthetic_healing(control=control)
    traces = {trace.name: trace for trace in heal_figure(record).data}
    assert set(traces) == {"healed", "converted"} | ({"control", "teacher"} if control else set())
    assert list(traces["healed"].x) == [0, STEP, 2 * STEP, 3 * STEP]
    assert traces["converted"].y[0] == traces["healed"].y[0]
    assert list(cache_figure(record).data[0].x) == [23_040, 7_680, 7_680] + ([23_040] if control else [])
    if control:
        assert set(traces["teacher"].y) == {traces["control"].y[0]}


def test_of_the_control_s_learning_rate_the_truth_is_told():
    for rate, told in ((0.0, "with the same learning rate"), (3e-4, "with the same learning rate"), (1e-5, "1e-05")):
        record = synthetic_healing()
        page = render_heal(record.model_copy(update={"settings": record.settings | {"control_lr": rate}}))
        assert (told in page, "learning rate of its own" in page) == (True, rate == 1e-5)


def test_a_cache_that_did_not_shrink_is_not_called_smaller():
    record = synthetic_healing()
    assert "smaller than the teacher’s" in render_heal(record)
    grown = record.healed.model_copy(update={"cache_bytes_per_token": 2 * record.before.cache_bytes_per_token})
    page = render_heal(record.model_copy(update={"healed": grown}))
    assert "smaller" not in page[: page.index("<main>")]


def damaged(part):
    """The record with one of its parts left out, or replaced by what it is not; at every place."""
    for key, value in part.items():
        rest = {name: other for name, other in part.items() if name != key}
        yield rest
        yield from (rest | {key: other} for other in (None, "text", -1, [], {}))
        if isinstance(value, dict):
            yield from (rest | {key: other} for other in damaged(value))


def test_a_damaged_record_is_refused_in_a_line_or_shown(monkeypatch):
    monkeypatch.setattr(heal_page, "get_plotlyjs", str)  # megabytes, a thousand times
    whole = synthetic_healing().model_dump(mode="json")
    refused = taken = 0
    for part in damaged(whole):
        try:
            record = HealRecord.model_validate(part)
        except ValidationError:
            refused += 1
            continue
        heal_tables(record)
        taken += 1
        if taken % 7 == 0:  # figures take their time
            render_heal(record)
    assert (refused > 500, taken > 100) == (True, True)


def test_without_a_control_nothing_is_said_of_one():
    record = synthetic_healing(control=False)
    assert "control’s" not in render_heal(record)
    assert [row[0] for row in models_grid(record).rows] == ["teacher", "converted", "healed"]
    assert [row[0] for row in trainings_grid(record).rows] == ["healed"]


def test_tables_have_a_cell_for_each_heading():
    for grid in (models_grid(synthetic_healing()), trainings_grid(synthetic_healing())):
        assert {len(row) for row in grid.rows} == {len(grid.headings)}
    assert trainings_grid(synthetic_healing()).rows[1][-1].startswith("11.473")  # exp(2.44), not the last


def test_a_healing_that_made_it_worse_says_so():
    record = synthetic_healing()
    worse = record.model_copy(update={"healed": record.converted, "converted": record.healed})
    for one, told in ((record, False), (worse, True)):
        summary = heal_tables(one)[-1]
        assert ("worse than converted" in list(summary.columns[0].cells)) is told


def test_it_is_written_whole(tmp_path):
    path = write_heal_page(synthetic_healing(), tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == render_heal(synthetic_healing())


@pytest.mark.system
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_it_draws_itself_and_fits_the_screen(tmp_path, width):
    path = write_heal_page(synthetic_healing("long" * 30), tmp_path)
    with chromium() as opening, opening(path, width) as page:
        page.wait_for_selector("#figure-cache .main-svg")
        check_fits(page)
        assert page.locator(".main-svg").count() >= 2
