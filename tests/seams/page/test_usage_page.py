"""A tenant sees its usage at `/usage` with its own key only."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.seams.page.support import ask, figure, sign_in_as_tenant
from tests.seams.support.server import Server

RULES = "Answer in one sentence, and name the page of the handbook that you answer from. " * 8


def test_a_tenant_sees_its_hits_and_why_it_missed(server: Server, page: Page) -> None:
    key, other = server.new_tenant(), server.new_tenant()
    ask(server, other, RULES)
    sign_in_as_tenant(page, server, key)
    expect(figure(page, "Requests")).to_have_text("0")
    ask(server, key, RULES)
    ask(server, key, RULES)
    expect(figure(page, "Requests")).to_have_text("2")
    expect(figure(page, "Hit rate")).not_to_have_text("0 %")
    ask(server, key, "Today is another day. " + RULES)
    expect(page.get_by_role("region", name="Why it missed").first).to_contain_text(
        "the system message"
    )


def test_a_key_of_nobody_is_refused(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/usage")
    page.get_by_label("Your API key").fill("rt-nobody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    sign_in_as_tenant(page, server, server.demo_key)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Your API key")).to_be_visible()
