"""The page in a real browser: every chart drawn, nothing asked for, all of it by keyboard, in light, dark, print and on a phone."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from charts_cases import HOSTILE as HOSTILE_CHARTS
from charts_cases import MARKUP, USUAL, heat, line, spoilt
from report_cases import HOSTILE, ONE_ROOT

from browser import needs_chromium
from trimtab.report.charts import Charts
from trimtab.report.html import render_html

pytestmark = needs_chromium

PIXELS = """figure => {
  const canvas = figure.querySelector(".uplot canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 250) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  return [...seen];
}"""
"""The colours of a chart."""


def colours(page, key):
    return set(page.locator(f'figure[data-chart="{key}"]').evaluate(PIXELS))


def variable(page, name):
    value = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
    return int(value[1:], 16)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_is_drawn_and_nothing_is_asked_for(opened, scheme):
    charts = Charts((*USUAL, spoilt()))
    page, heard = opened(render_html(ONE_ROOT, charts=charts), color_scheme=scheme)
    assert heard.said == []
    assert [address for address in heard.asked if not address.startswith("file:")] == []
    assert page.evaluate("[...document.querySelectorAll('figure')].map(f => f.dataset.drawn)") == ["yes"] * len(charts)
    assert variable(page, "c0") in colours(page, "loss")  # the curve
    assert variable(page, "c1") in colours(page, "loss")  # its points
    assert variable(page, "muted") in colours(page, "loss")  # the limit
    assert len(colours(page, "signal")) > 100
    assert {variable(page, "zero"), variable(page, "broken")} <= colours(page, "gradient")
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == {
            "light": "rgb(255, 255, 255)",
            "dark": "rgb(20, 23, 27)",
        }[scheme]
    )


def test_markup_in_names_is_shown_and_not_obeyed(opened):
    page, heard = opened(render_html(HOSTILE, charts=HOSTILE_CHARTS))
    assert heard.said == []
    assert len(heard.asked) == 1
    assert page.title() not in ("1", "2")
    assert page.locator("main img").count() == 0
    legend = page.locator('figure[data-chart^="logged-"] .u-legend')
    assert MARKUP in legend.inner_text()
    plot = page.locator('figure[data-chart="signal"] .plot')
    plot.scroll_into_view_if_needed()
    box = page.locator('figure[data-chart="signal"] .u-over').bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    assert MARKUP in page.locator('figure[data-chart="signal"] .readout').inner_text()


def test_findings_open_by_keyboard(opened):
    page, _ = opened(render_html(ONE_ROOT, charts=USUAL))
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    assert page.locator("details.finding[open]").count() == 1
    assert page.get_by_text("weight variance times inputs").is_visible()
    while "About" not in page.evaluate("document.activeElement.textContent"):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.get_by_text("Going back through a layer multiplies the mean square").is_visible()


def test_charts_are_read_by_keyboard(opened):
    page, _ = opened(render_html(ONE_ROOT, charts=Charts((line(n=50), heat()))))
    page.locator('figure[data-chart="loss"] .plot').focus()
    page.keyboard.press("ArrowRight")
    said = page.locator('figure[data-chart="loss"] [aria-live]')
    assert said.text_content().startswith(f"step 2: loss {3 * 0.97**2:.3g}")
    page.keyboard.press("End")
    assert said.text_content().startswith("step 50:")
    chart = heat()
    page.locator('figure[data-chart="signal"] .plot').focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    told = page.locator('figure[data-chart="signal"] [aria-live]').text_content()
    assert told.startswith("layer.2 · step 10 · rms ")
    assert float(told.split()[-1]) == pytest.approx(chart.values[2, 1], rel=0.006)  # three digits


def test_the_mouse_reads_a_heat_map_where_it_stands(opened):
    page, _ = opened(render_html(ONE_ROOT, charts=Charts((heat(rows=10, columns=20),))))
    page.locator("figure.heat").scroll_into_view_if_needed()
    box = page.locator("figure.heat .u-over").bounding_box()
    values = heat(rows=10, columns=20).values
    for row, column in ((0, 0), (9, 19), (4, 7)):
        page.mouse.move(box["x"] + (column + 0.5) / 20 * box["width"], box["y"] + (row + 0.5) / 10 * box["height"])
        told = page.locator("figure.heat .readout").inner_text()
        assert told.startswith(f"layer.{row} · step {column * 10} · rms ")
        assert float(told.split()[-1]) == pytest.approx(values[row, column], rel=0.006)


def test_a_phone_gets_no_scroll_bar_across(opened):
    page, heard = opened(
        render_html(ONE_ROOT, charts=Charts((*USUAL, *HOSTILE_CHARTS))),
        viewport={"width": 390, "height": 844},
        is_mobile=True,
        has_touch=True,
        device_scale_factor=2,
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert heard.said == []
    page.set_viewport_size({"width": 844, "height": 390})  # turned
    for _ in range(100):  # the page's own policy forbids to wait for an expression
        if page.locator(".uplot canvas").first.evaluate("canvas => canvas.clientWidth") > 700:
            return
        page.wait_for_timeout(50)
    pytest.fail("the charts have not grown with the window")


def test_on_paper_all_findings_are_unfolded_on_white(opened):
    page, heard = opened(render_html(ONE_ROOT, charts=USUAL), color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("details.finding:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 20_000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.finding:not([open])").count() == 3
    assert heard.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("unfolded", [False, True])
def test_axe_finds_no_violation(opened, scheme, unfolded):
    page, _ = opened(render_html(ONE_ROOT, charts=Charts((*USUAL, spoilt()))), color_scheme=scheme)
    if unfolded:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["impact"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found] == []


def test_three_hundred_modules_at_a_thousand_steps_are_drawn(opened):
    charts = Charts(tuple(heat(key, 300, 1000, seed) for seed, key in enumerate(("signal", "gradient", "update"))))
    page, heard = opened(render_html(ONE_ROOT, charts=charts))
    assert heard.said == []
    assert page.locator('figure[data-drawn="yes"]').count() == 3


def test_a_browser_that_cannot_unpack_heat_maps_says_so(browser, tmp_path):
    (tmp_path / "report.html").write_text(render_html(ONE_ROOT, charts=Charts((line(), heat()))), encoding="utf-8")
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("body[data-ready]", timeout=30_000)
    assert "This browser is too old" in page.locator('figure[data-chart="signal"] .plot').inner_text()
    assert page.locator('figure[data-chart="loss"] canvas').count() == 1
    page.close()
