"""A real, headless Chromium for the tests of pages."""

import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next(filter(None, map(shutil.which, NAMES)), None)

# Nothing but the page itself asks for anything on the network.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

needs_chromium = pytest.mark.skipif(
    EXECUTABLE is None and not os.environ.get("TRIMTAB_WHOLE_MACHINE"),
    reason="there is no Chromium on this machine",
)
"""For tests that open a page; where the machine is said to be whole, a missing Chromium is a failure."""


@contextmanager
def chromium():
    """Yield a browser of playwright's."""
    from playwright.sync_api import sync_playwright

    assert EXECUTABLE is not None, f"none of {', '.join(NAMES)} is on the PATH"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=EXECUTABLE, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Heard:
    """What a page has said and asked for since `listen` began.

    Attributes:
        said: Warnings and errors of its console, and errors that no script of it has caught.
        asked: Addresses it asked for, those of `data:` and `blob:` left out.
    """

    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


def listen(page):
    """Listen to a page of playwright's before it goes anywhere.

    Args:
        page: The page.

    Returns:
        What it says and asks for from now on.
    """
    heard = Heard()
    page.on(
        "console", lambda message: heard.said.append(message.text) if message.type in {"error", "warning"} else None
    )
    page.on("pageerror", lambda error: heard.said.append(str(error)))
    page.on(
        "request",
        lambda request: heard.asked.append(request.url) if not request.url.startswith(("data:", "blob:")) else None,
    )
    return heard
