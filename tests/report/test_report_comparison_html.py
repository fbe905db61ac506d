"""The page of two runs: on one scale, complete in itself, drawn in a real browser, harmless, for everybody."""

import json
import math
import re
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from charts_cases import MARKUP
from comparison_cases import ALL, HEALED, SPOILT, USUAL, A, compared, course
from report_cases import CLIPPED, RUN, VANISHING

from browser import needs_chromium
from trimtab.errors import UsageError
from trimtab.report import Diagnosis
from trimtab.report.charts import Charts

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def data(page):
    found = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    return {chart["key"]: chart for chart in found["charts"]}


@pytest.fixture(scope="module")
def usual():
    return USUAL.to_html()


# ---------------------------------------------------------------------------------------------------- scales


def test_maps_side_by_side_have_one_colour_range(usual):
    one, other = data(usual)["signal-a"], data(usual)["signal-b"]
    assert (one["low"], one["high"]) == (other["low"], other["high"])
    assert one["columns"] == other["columns"]
    assert one["rows"] == other["rows"]


def test_lines_side_by_side_have_one_range(usual):
    for key, x_range, y_range in (("sharpness", [0, 7], [1, 80]), ("signal-by-depth", None, [0.25 / 3, 120])):
        for side in "ab":
            chart = data(usual)[f"{key}-{side}"]
            assert chart.get("xRange") == x_range
            assert chart["yRange"] == pytest.approx(y_range)


def test_a_curve_of_an_overlay_says_where_its_numbers_belong(usual):
    loss = data(usual)["loss"]
    before, after, chance = loss["curves"]
    assert before["at"] == list(range(50))
    assert len(before["y"]) == 50
    assert None not in before["y"]
    assert len(loss["x"]) == len(after["y"]) == 80
    assert "at" not in after
    assert "at" not in chance


def test_what_the_page_says(usual):
    text = " ".join(re.sub(r"<[^>]+>", " ", usual.partition("<main")[2].partition("<footer")[0]).split())
    for told in ("2 gone, 1 new, 1 still there", "− Gone", "+ New", "= Still there", "lr 1 0.01", "LayerNorm"):
        assert told in text


def test_what_a_finding_that_stays_was():
    same = compared(Diagnosis((VANISHING,), RUN), Diagnosis((VANISHING,), RUN))
    assert 'class="muted before"' not in same.to_html()
    moved = compared(Diagnosis((CLIPPED,), RUN), Diagnosis((replace(CLIPPED, severity="error", where=("data",)),), RUN))
    assert "In before: note in the training loop" in " ".join(moved.to_html().split())


def test_a_chart_that_one_run_lacks_has_a_place_that_says_so():
    page = compared(Diagnosis((), RUN), Diagnosis((), RUN), charts=(A, Charts((A["loss"],)))).to_html()
    assert page.count('class="absent"') == len(A) - 1
    assert page.count("This run has no such chart") == len(A) - 1


@pytest.mark.parametrize("name", ALL)
def test_no_foreign_word_is_markup(name):
    page = ALL[name].to_html()
    assert "<img" not in page
    assert page.count("<script") == 3
    assert "http://www.w3.org/2000/svg" in page
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", page.partition("<main")[2])


def test_a_page_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="cannot write the page to"):
        HEALED.to_html(tmp_path / "no" / "page.html")
    assert HEALED.to_html(tmp_path / "page.html") == (tmp_path / "page.html").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- in a browser


@needs_chromium
@pytest.mark.parametrize("name", ALL)
def test_every_chart_is_drawn_and_nothing_is_asked_for(opened, name):
    page, heard = opened(ALL[name].to_html())
    assert heard.said == []
    assert [address for address in heard.asked if not address.startswith("file:")] == []
    drawn = page.evaluate("[...document.querySelectorAll('figure')].map(f => f.dataset.drawn)")
    assert drawn == ["yes"] * len(data(ALL[name].to_html()))
    assert page.title() not in ("1", "2")


def spoken(page, key, index):
    """What a chart says of a place."""
    page.locator(f'figure[data-chart="{key}"] .plot').focus()
    page.keyboard.press("Home")
    for _ in range(index):
        page.keyboard.press("ArrowRight")
    return page.locator(f'figure[data-chart="{key}"] [aria-live]').text_content()


PLACE = """figure => {
  const point = figure.querySelector(".u-cursor-pt").getBoundingClientRect();
  const frame = figure.querySelector(".u-over").getBoundingClientRect();
  return [(point.x + point.width / 2 - frame.x) / frame.width, 1 - (point.y + point.height / 2 - frame.y) / frame.height];
}"""


def place(page, key, index):
    """Where the first curve's number at a place stands, as shares of the frame's width and height."""
    spoken(page, key, index)
    return page.locator(f'figure[data-chart="{key}"]').evaluate(PLACE)


@needs_chromium
def test_the_same_step_stands_at_the_same_place(opened):
    """One run has steps 0 to 4, the other 3 to 7."""
    page, _ = opened(USUAL.to_html())
    for side, first in (("a", 0), ("b", 3)):
        for index in range(5):
            across, _ = place(page, f"sharpness-{side}", index)
            assert across == pytest.approx((first + index) / 7, abs=0.01)


@needs_chromium
def test_the_same_number_stands_at_the_same_height(opened):
    """1, 2, 3 ... in the one run and 10, 20, 30 ... in the other: in pixels, all lie on one line."""
    page, _ = opened(USUAL.to_html())
    shares = {}
    for side in "ab":
        for index in (0, 4):
            _, share = place(page, f"sharpness-{side}", index)
            shares[float(spoken(page, f"sharpness-{side}", index).split()[-1])] = share
    assert sorted(shares) == [1, 5, 40, 80]
    slope = (shares[80] - shares[1]) / math.log(80)  # both together are wide, so the axes are logarithmic
    for value, share in shares.items():
        assert share == pytest.approx(shares[1] + slope * math.log(value), abs=0.01)


COLUMNS = """(canvas, wanted) => {
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const has = (x, y) => wanted.every((part, k) => Math.abs(data[4 * (y * width + x) + k] - part) < 12);
  return Array.from({ length: width }, (_, x) => Array.from({ length: height }, (_, y) => has(x, y)).includes(true));
}"""
"""Whether each column of a canvas has a colour."""


@needs_chromium
def test_a_line_is_not_broken_where_only_the_other_run_has_steps(opened):
    every_third = compared(
        Diagnosis((), RUN), Diagnosis((), RUN), charts=(Charts((course_of(3),)), Charts((course_of(1),)))
    )
    page, _ = opened(every_third.to_html(), device_scale_factor=3)  # so that a line has a core of its own colour
    colour = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c0').trim()")
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    columns = page.locator('figure[data-chart="loss"] canvas').evaluate(COLUMNS, wanted)
    drawn = columns[columns.index(True) : len(columns) - columns[::-1].index(True)]
    assert len(drawn) > 1000
    assert all(drawn)


def course_of(every):
    return course(n=60 // every, every=every, factor=1.0 if every == 1 else 9.0)


@needs_chromium
def test_a_zoom_that_is_taken_back_shows_the_common_range_again(opened):
    page, heard = opened(USUAL.to_html())
    box = page.locator('figure[data-chart="sharpness-a"] .u-over').bounding_box()
    before = place(page, "sharpness-a", 2)
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40, steps=5)
    page.mouse.up()
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 60)
    assert place(page, "sharpness-a", 2) == pytest.approx(before)
    assert heard.said == []


@needs_chromium
def test_maps_side_by_side_are_of_one_width_though_one_has_marks(opened):
    spoilt = replace(VANISHING, where=("layer.0", "layer.3"))
    page, _ = opened(compared(Diagnosis((spoilt,), RUN), Diagnosis((), RUN)).to_html())
    assert "▸ marks what a finding of the run names." in page.locator("main").inner_text()
    one, other = (page.locator(f'figure[data-chart="signal-{side}"] .u-over').bounding_box() for side in "ab")
    assert (one["width"], one["height"]) == (other["width"], other["height"])


@needs_chromium
def test_on_a_desk_side_by_side_and_on_a_phone_one_under_the_other(opened):
    for settings, beside in (({}, True), (PHONE, False)):
        page, heard = opened(USUAL.to_html(), **settings)
        one, other = (page.locator(f'figure[data-chart="signal-{side}"]').bounding_box() for side in "ab")
        assert (abs(one["y"] - other["y"]) < 1) == beside
        assert (one["x"] + one["width"] <= other["x"]) == beside
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        assert heard.said == []


@needs_chromium
def test_hostile_names_fit_a_phone(opened):
    page, heard = opened(SPOILT.to_html(), **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert MARKUP in page.locator("main").inner_text()
    assert heard.said == []


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(opened, scheme):
    page, _ = opened(USUAL.to_html(), color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["impact"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found] == []
