"""Pages of the tests in this folder, opened in a real browser."""

import pytest

from browser import chromium, listen


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens a page from a file and waits for its charts."""
    contexts = []

    def open_(html, **settings):
        path = tmp_path / "opened.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings}))
        page = contexts[-1].new_page()
        heard = listen(page)
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]", timeout=30_000)
        return page, heard

    yield open_
    for context in contexts:
        context.close()
