"""Make the README's picture: the demo's page in a browser, findings to the left, charts to the right.

    make demo && .venv/bin/python docs/images/shoot.py trimtab-demo/report.html

Needs Chromium, as the tests of pages do.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

LEFT, RIGHT, GAP = 700, 560, 16
"""Widths of the two windows, and what lies between them, in pixels of the page."""

CHARTS = ("gradient", "gradient-by-depth")


def window(page: Page, width: int, show: str) -> Image.Image:
    """What an element shows in a window so wide."""
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(600)  # the charts follow the window
    return Image.open(io.BytesIO(page.locator(show).screenshot()))


def main(report: str) -> None:
    """Write page.png beside this file."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(device_scale_factor=2)
        page.goto(Path(report).resolve().as_uri())
        page.wait_for_selector("body[data-ready]")
        page.evaluate("document.querySelector('.top').hidden = true")
        findings = window(page, LEFT, "#findings")
        page.evaluate(
            "keys => document.querySelectorAll('figure, section, h2').forEach(e => {"
            " e.hidden = e.tagName === 'FIGURE' ? !keys.includes(e.dataset.chart) : e.tagName === 'H2';"
            "})",
            list(CHARTS),
        )
        charts = window(page, RIGHT, "#charts")
        chromium.close()
    size = (findings.width + charts.width + 2 * GAP, max(findings.height, charts.height))
    picture = Image.new("RGB", size, "white")
    picture.paste(findings, (0, 0))
    picture.paste(charts, (findings.width + 2 * GAP, 0))
    picture.quantize(256).save(Path(__file__).with_name("page.png"), optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
