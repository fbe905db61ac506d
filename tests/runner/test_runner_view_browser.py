"""The page of `trimtab view` in a real browser, while a run in another process trains."""

import re
import signal
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from view_cases import running, serving, training

from browser import chromium, listen, needs_chromium

pytestmark = needs_chromium

SOON = 2.0
"""Seconds from a step's commit to the page that shows it."""


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser):
    found = browser.new_page(viewport={"width": 1200, "height": 900})
    found.set_default_timeout(8000)
    found.heard = listen(found)
    yield found
    found.close()


def last_step(page):
    text = page.inner_text("figure[data-chart=loss] .u-legend")
    return int(re.search(r"step:?\s*(\d+)", text)[1])


def wait_for(condition, seconds=8.0):
    """When it came true, or None."""
    end = time.time() + seconds
    while not condition():
        if time.time() > end:
            return None
        time.sleep(0.02)
    return time.time()


def test_the_page_follows_a_run_from_its_first_step_to_its_end(page, tmp_path):
    record = tmp_path / "run.db"
    with running(record) as run:
        run.train(3)
        with serving(record) as viewer:
            page.goto(viewer.url)
            page.wait_for_selector("body[data-ready]")
            assert last_step(page) == 1  # the third is committed when the fourth begins
            assert page.title() == "told · trimtab"
            assert "Following the run." in page.inner_text("#live")

            for last in (5, 9, 17):
                committed = run.train(last - last_step(page))
                shown = wait_for(lambda last=last: last_step(page) == last)
                assert shown is not None
                assert shown - committed < SOON
            assert "told" in page.inner_text("header")

            assert page.locator("details.finding.error").count() == 0
            run.train(0)
            broken = run.train(3)
            seen = wait_for(lambda: page.locator("details.finding.error").count() > 0)
            assert seen is not None
            assert seen - broken < SOON
            assert page.locator("details.finding.error[open]").count() == 1

            page.locator("details.finding.error > summary").first.press("Enter")  # folded by its reader
            run.train(3)
            ended = run.end()
            over = wait_for(lambda: page.get_attribute("#live", "data-state") == "over")
            assert over is not None
            assert over - ended < SOON
            assert "has ended" in page.inner_text("#live")
            assert "not ended" not in page.inner_text("#facts")
            assert page.locator("details.finding.error[open]").count() == 0
            assert page.evaluate("document.activeElement.localName") == "summary"

            asked = len(page.heard.asked)
            page.wait_for_timeout(1200)
            assert len(page.heard.asked) == asked, "it asks on although the run has ended"
            assert page.heard.said == []
            assert all(url.startswith(viewer.url.partition("?")[0]) for url in page.heard.asked)


def test_what_the_reader_has_set_stays(page, tmp_path):
    record = tmp_path / "run.db"
    with training(record) as train:
        train(40)
        with serving(record) as viewer:
            page.goto(viewer.url)
            page.wait_for_selector("body[data-ready]")

            def zoom(key):
                return page.evaluate(f"trimtab.drawn.get(document.querySelector('figure[data-chart={key}]')).kept()")

            for key in ("loss", "signal"):
                over = page.locator(f"figure[data-chart={key}] .u-over")
                over.scroll_into_view_if_needed()
                box = over.bounding_box()
                page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
                page.mouse.down()
                page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 22, steps=4)
                before = len(page.heard.asked)
                page.wait_for_timeout(700)
                assert len(page.heard.asked) <= before + 1, "a chart must not change under a hand"
                page.mouse.up()
            zoomed = {key: zoom(key)["x"] for key in ("loss", "signal")}
            assert zoomed["loss"][0] == pytest.approx(9.5, abs=1.5)
            assert zoomed["signal"][1] == pytest.approx(19, abs=1.5)
            page.locator("figure[data-chart=gradient-norm] .u-legend .u-series:last-child th").click()
            page.locator("figure[data-chart=gradient-norm] .plot").focus()
            page.locator("details.numbers > summary").first.evaluate("summary => summary.parentNode.open = true")
            page.evaluate("scrollTo({ top: 600, behavior: 'instant' })")
            top = page.locator("figure[data-chart=signal]").bounding_box()["y"]

            train(40)
            assert wait_for(lambda: "79 steps" in page.inner_text("#facts")) is not None
            page.wait_for_timeout(100)
            for key, x in zoomed.items():
                assert zoom(key)["x"] == pytest.approx(x, abs=0.5)
            assert zoom("gradient-norm")["hidden"] != []
            assert page.evaluate("document.activeElement.closest('figure').dataset.chart") == "gradient-norm"
            assert page.locator("details.numbers[open]").count() == 1
            assert page.evaluate("scrollY") == 600
            assert page.locator("figure[data-chart=signal]").bounding_box()["y"] == top
            assert page.heard.said == []


def test_the_page_says_when_its_server_or_its_record_is_gone(page, shell):
    record = shell.folder / "run.db"
    with training(record) as train:
        train(5)
        view = shell.start("-m", "trimtab", "view", record)
        url = view.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{40,}", url)
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        record.rename(shell.folder / "elsewhere.db")
        assert wait_for(lambda: "no longer there" in page.inner_text("#live")) is not None
        assert page.locator("figure[data-drawn]").count() > 2, "what was shown must stay"
        (shell.folder / "elsewhere.db").rename(record)
        train(1)
        assert wait_for(lambda: "Following the run." in page.inner_text("#live")) is not None
        assert page.heard.said == []
        view.send_signal(signal.SIGINT)
        out, err = view.communicate()
        assert (view.returncode, out, err.count("\n")) == (0, "", 1)
        assert wait_for(lambda: "does not answer" in page.inner_text("#live")) is not None
        page.heard.asked.clear()
        page.wait_for_timeout(2500)
        assert len(page.heard.asked) <= 2, "it asks as often as before"


def test_names_of_a_hostile_model_stay_text_when_they_come_later(page, tmp_path):
    import torch
    from torch import nn

    import trimtab

    record, model = tmp_path / "run.db", nn.Sequential()
    model.add_module("<img src=x onerror=alert(1)>", nn.Linear(4, 2))
    model.add_module("</script><script>alert(2)</script>", nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trimtab.watch(model, optimizer, store=record, name="<b>run</b>", every=1), serving(record) as viewer:
        page.on("dialog", lambda dialog: page.heard.said.append("dialog"))
        page.goto(viewer.url)
        page.wait_for_selector("body[data-ready]")
        assert "No training step was seen yet." in page.inner_text("h1")
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        assert wait_for(lambda: page.locator("figure[data-drawn]").count() > 2) is not None
        assert "<img src=x onerror=alert(1)>" in page.locator("figure[data-chart=signal-by-depth]").text_content()
        assert page.inner_text("header .run") == "<b>run</b>"
        assert page.locator("main img, main script").count() == 0
        assert [(found["id"], found["impact"]) for found in Axe().run(page).response["violations"]] == []
        assert page.heard.said == []
