"""axe-core finds no serious problem in any view, narrow and wide, light and dark.

No view is wider than the window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.seams.page.support import VIEWS, Visit, ask, open_view, sign_in, sign_in_as_tenant
from tests.seams.support.server import Server

NARROW_LIGHT: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "color_scheme": "light",
}
WIDE_DARK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"}
look = pytest.mark.parametrize("look", [NARROW_LIGHT, WIDE_DARK], ids=["narrow-light", "wide-dark"])


def serious(page: Page) -> list[str]:
    """List the elements with serious or critical problems, according to axe-core."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def overflow(page: Page) -> int:
    """Return the number of pixels by which the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@look
def test_every_view(server: Server, visit: Callable[..., Visit], look: dict[str, Any]) -> None:
    page = visit(**look).page
    page.goto(f"{server.url}/admin/ui")
    expect(page.get_by_label("Operator's key")).to_be_visible()
    assert serious(page) == []
    sign_in(page, server)
    for name in VIEWS:
        open_view(page, name)
        expect(page.get_by_text("Loading…")).to_have_count(0)
        assert (name, serious(page), overflow(page)) == (name, [], 0)
        if name != "Overview":  # the page opens with the Overview
            expect(page.locator("main")).to_be_focused()


def test_dialogs(server: Server, visit: Callable[..., Visit]) -> None:
    page = visit(**WIDE_DARK).page
    sign_in(page, server)
    for view, button in (("Tenants", "New tenant"), ("Prefixes", "Publish a prefix")):
        open_view(page, view)
        opener = page.get_by_role("button", name=button)
        opener.click()
        expect(page.get_by_label("Name", exact=True)).to_be_focused()
        assert (button, serious(page)) == (button, [])
        page.keyboard.press("Escape")
        expect(opener).to_be_focused()


def test_a_tenant_s_pages(server: Server, visit: Callable[..., Visit]) -> None:
    ask(server, server.demo_key, "Be brief.")
    page = visit(**NARROW_LIGHT).page
    sign_in_as_tenant(page, server, server.demo_key)
    assert (serious(page), overflow(page)) == ([], 0)
    sign_in(page, server)
    open_view(page, "Tenants")
    page.get_by_role("link", name="demo", exact=True).click()
    expect(page.get_by_role("heading", name="Cache quota")).to_be_visible()
    assert (serious(page), overflow(page)) == ([], 0)


def test_the_checks_find_what_is_wrong(server: Server, page: Page) -> None:
    sign_in(page, server)
    page.evaluate(
        """() => {
            const image = document.createElement("img");
            Object.assign(image.style, {display: "block", width: "5000px", height: "1px"});
            document.querySelector("main").append(image);
        }"""
    )
    assert any(one.startswith("image-alt") for one in serious(page))
    assert overflow(page) > 0
