"""Fixtures: a real Chromium that the tests of the page share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.seams.page.support import Visit

# The headless shell draws no windows, so a page takes half the CPU time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000  # milliseconds, enough on two busy cores
# A page polls every few seconds. Here it polls ten times as often.
SHORT_WAITS = """
    const waits = window.setTimeout;
    window.setTimeout = (then, ms = 0, ...rest) => waits(then, ms / 10, ...rest);
"""


# not "session": no other event loop can run while the browser exists
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip("no Chromium: `make chromium` installs Debian's package")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(
                executable_path=executable, args=["--disable-gpu", "--disable-software-rasterizer"]
            )
        except Error as error:  # no browser can start, for example in a sandbox
            pytest.skip(f"Chromium does not start: {error.message.splitlines()[0]}")
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Open pages; at the end, check that the CSP refused nothing and no script failed."""
    visits: list[Visit] = []

    def open_page(**options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(SHORT_WAITS)
        visits.append(Visit(context.new_page()))
        return visits[-1]

    yield open_page
    for one in visits:
        one.page.context.close()
        assert one.failures == []


@pytest.fixture
def page(visit: Callable[..., Visit]) -> Page:
    return visit().page
