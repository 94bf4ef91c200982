"""The page `/docs` in a real Chromium sends requests by the actions of FastAPI's own page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from tests.seams.page.support import Visit
from tests.seams.support.server import Server

NARROW: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
USED = (
    *("/v1/models", "/v1/chat/completions", "/v1/messages"),
    *("/admin/groups", "/admin/tenants"),
)


def show_used(page: Page) -> None:
    """Hide unused operations, since drawing all of them takes seconds of CPU time."""

    def fulfil(route: Route) -> None:
        answer = route.fetch()
        described = answer.json()
        described["paths"] = {path: described["paths"][path] for path in USED}
        route.fulfill(response=answer, json=described)

    page.route("**/openapi.json", fulfil)


def authorize(page: Page, scheme: str, key: str) -> None:
    page.get_by_role("button", name="Authorize", exact=True).first.click()
    dialog = page.locator(".auth-container").filter(has_text=scheme)
    dialog.get_by_role("textbox").fill(key)
    dialog.get_by_role("button", name="Apply credentials").click()
    page.get_by_role("button", name="Close").first.click()


def block_of(page: Page, method: str, path: str) -> Locator:
    """Return the block of the page that shows an operation."""
    return page.locator(f".opblock-{method}").filter(has=page.locator(f'[data-path="{path}"]'))


def try_out(page: Page, method: str, path: str, body: str | None = None) -> Any:
    """Send a request as the page does; return its answer."""
    block = block_of(page, method, path)
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    if body is not None:
        block.locator("textarea.body-param__text").fill(body)
    with page.expect_response(lambda answer: answer.url.endswith(path)) as came:
        block.get_by_role("button", name="Execute").click()
    return came.value


def test_a_group_is_made_and_a_tenant_chats(server: Server, visit: Callable[..., Visit]) -> None:
    at = visit(**NARROW)
    show_used(at.page)
    at.page.goto(f"{server.url}/docs")
    expect(at.page.get_by_role("heading", name="Ratoon")).to_be_visible()
    expect(at.page.locator("html.dark-mode"), "as the browser").to_be_attached()
    refused = try_out(at.page, "get", "/v1/models")
    assert refused.status == 401
    authorize(at.page, "operator", server.admin_key)
    authorize(at.page, "tenant", server.demo_key)
    made = try_out(at.page, "post", "/admin/groups", '{"name": "made-in-the-docs"}')
    assert (made.status, made.json()["name"]) == (201, "made-in-the-docs")
    chat = '{"model": "handbook", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}'
    answered = try_out(at.page, "post", "/v1/chat/completions", chat)
    assert answered.json()["usage"]["completion_tokens"] == 2
    for path in ("/v1/messages", "/admin/tenants"):
        block = block_of(at.page, "post", path)
        block.locator(".opblock-summary-control").click()
        expect(block.get_by_text("Request body"), "its fields").to_be_visible()
    assert all(url.startswith((server.url, "data:")) for url in at.asked), at.asked
