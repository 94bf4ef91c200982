"""How soon the pages show something in Chromium on loopback, and how large they are.

    python -m benchmarks.gateway.first_paint --loads 20

The gateway is complete but for the engine. Each load is of a browser that has nothing of the page
yet: the operator's page up to its sign-in, a tenant's, and `/docs`. The time is the browser's own,
from the beginning of the navigation to the first content that is painted. Bytes are those of all
answers, as they were sent. Needs a Chromium, as the tests of the page do. JSON lines.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from playwright.sync_api import Browser, Error, Page, Request, sync_playwright

from benchmarks.gateway.started import first_started
from benchmarks.record import emit
from cli.options.flags import flattened
from gateway.page.files import API, STATIC
from tests.doubles.gateway.gateway_process import gateways

PATHS = ("/admin/ui", "/usage", "/docs")
_PAINTED = """() => new Promise((resolve) => {
    const seen = (entries) => entries.find(({ name }) => name === "first-contentful-paint");
    new PerformanceObserver((list, observer) => {
        const found = seen(list.getEntries());
        if (found) { observer.disconnect(); resolve(found.startTime); }
    }).observe({ type: "paint", buffered: true });
})"""


@dataclass(frozen=True, slots=True)
class Options:
    """How often is measured, and where."""

    loads: Annotated[int, typer.Option(help="Of each page, each with an empty cache.")] = 20
    port: Annotated[int, typer.Option(help="Of the gateway.")] = 8095
    browser: Annotated[str, typer.Option(help="A Chromium.")] = "chromium"


def load(browser: Browser, url: str) -> tuple[float, int]:
    """Milliseconds to the first content, and the bytes of all answers."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page: Page = context.new_page()
    asked: list[Request] = []
    page.on("requestfinished", lambda one: asked.append(one))
    page.goto(url, wait_until="networkidle")
    painted = float(page.evaluate(_PAINTED))
    came = sum(one.sizes()["responseBodySize"] for one in asked if one.url.startswith("http"))
    context.close()
    return painted, came


def measure(options: Options, browser: Browser) -> None:
    """Load each page, and print."""
    for path in PATHS:
        url = f"http://127.0.0.1:{options.port}{path}"
        load(browser, url)  # the browser's own start
        found = [load(browser, url) for _ in range(options.loads)]
        times = [painted for painted, _ in found]
        emit(
            f"first paint of {path}",
            median_ms=statistics.median(times),
            most_ms=max(times),
            bytes=found[-1][1],
        )


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(options: Options) -> None:
    """Measure."""
    emit("files of the operator's and the tenants' page", bytes=_bytes_in(STATIC))
    emit("files of /docs", bytes=_bytes_in(API))
    executable = shutil.which(options.browser)
    if executable is None:
        raise typer.BadParameter(f"there is no {options.browser} here")
    with (
        first_started(options.port, access_log="off") as (config, _),
        tempfile.TemporaryFile() as log,
        gateways(config, 1, log),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=executable)
        _until_up(browser, options.port)
        measure(options, browser)
        browser.close()


def _until_up(browser: Browser, port: int) -> None:
    page = browser.new_page()
    for _ in range(600):
        try:
            page.goto(f"http://127.0.0.1:{port}/healthz")
        except Error:
            page.wait_for_timeout(50)
        else:
            return
    raise RuntimeError("the gateway did not come up")


if __name__ == "__main__":
    typer.run(flattened(main))
