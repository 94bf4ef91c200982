"""Actions of a person at the page, and errors that a page must never have."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from tests.seams.support.server import Server

VIEWS = ("Overview", "Cache", "Requests", "Tenants", "Prefixes", "Isolation and health")
NOT_KNOWN = "\N{EN DASH}"  # the dash that the page shows for an unknown value
NO_ANSWER = "Failed to load resource"  # Chromium's message for every status above 399


class Visit:
    """A page, with the addresses that it requested, and its errors."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[str] = []
        self.failures: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and NO_ANSWER not in message.text:
            self.failures.append(message.text)


def sign_in(page: Page, server: Server) -> None:
    """Open the page, and sign in as the operator."""
    page.goto(f"{server.url}/admin/ui")
    page.get_by_label("Operator's key").fill(server.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def sign_in_as_tenant(page: Page, server: Server, key: str) -> None:
    """Open the page, and sign in as the tenant."""
    page.goto(f"{server.url}/usage")
    page.get_by_label("Your API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Hit rate").first).to_be_visible()


def open_view(page: Page, name: str) -> None:
    """Open a view by the links at the top."""
    page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()


def figure(page: Page, name: str) -> Locator:
    """Return the value of a figure at the top of a view."""
    term = page.get_by_role("term").filter(has_text=name).first
    return term.locator("xpath=following-sibling::dd")


def row(page: Page, table: str, text: str) -> Locator:
    """Return the row with `text` in the table with that label."""
    return page.get_by_role("region", name=table).get_by_role("row").filter(has_text=text)


def make_tenant(page: Page, name: str) -> str:
    """Create a tenant with a key in the page; return the key that is shown."""
    open_view(page, "Tenants")
    page.get_by_role("button", name="New tenant").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Make tenant").click()
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    page.get_by_role("button", name="New key").click()
    page.get_by_role("button", name="Make key").click()
    key = page.get_by_role("textbox", name="Key", exact=True).input_value()
    page.get_by_role("button", name="Done").click()
    return key


def ask(server: Server, key: str, system: str, question: str = "Hello") -> dict[str, Any]:
    """Send a chat; return its usage."""
    with server.openai(key) as client:
        said = client.chat.completions.create(
            model="handbook",
            messages=[
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
            max_tokens=4,
        )
    assert said.usage is not None
    return said.usage.model_dump()


def cached(usage: dict[str, Any]) -> int:
    """Return the number of cached prompt tokens."""
    return int(usage["prompt_tokens_details"]["cached_tokens"])
