"""An operator signs in, changes tenants and sees faults at `/admin/ui`, in a real Chromium."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.seams.page.support import (
    NOT_KNOWN,
    VIEWS,
    Visit,
    ask,
    cached,
    figure,
    make_tenant,
    open_view,
    row,
    sign_in,
)
from tests.seams.support.server import Server, running_server

RULES = "Answer in one sentence, and name the page of the handbook that you answer from. " * 8


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir: Path = tmp_path_factory.mktemp("page") / "data"
    with running_server(data_dir) as running:
        yield running


def test_a_wrong_key_is_refused_and_the_right_one_lasts_until_signing_out(
    operated: Server, page: Page
) -> None:
    page.goto(f"{operated.url}/admin/ui")
    page.get_by_label("Operator's key").fill(operated.demo_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    sign_in(page, operated)
    page.reload()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Operator's key")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Operator's key")).to_be_visible()


def test_a_session_that_has_ended_leads_back_to_where_one_was(operated: Server, page: Page) -> None:
    sign_in(page, operated)
    open_view(page, "Prefixes")
    expect(page.get_by_role("heading", name="Published prefixes")).to_be_visible()
    page.context.clear_cookies()  # the page's next request is refused
    expect(page.get_by_text("The session has ended")).to_be_visible()
    expect(page.get_by_role("heading", name="Published prefixes")).to_have_count(0)
    page.get_by_label("Operator's key").fill(operated.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Published prefixes")).to_be_visible()


def test_a_new_tenant_hits_on_the_second_try(operated: Server, page: Page) -> None:
    name = f"acme-{uuid.uuid4().hex[:6]}"
    sign_in(page, operated)
    key = make_tenant(page, name)
    assert key not in page.content(), "shown once"
    expect(row(page, "Keys", "live")).to_be_visible()
    expect(figure(page, "Requests")).to_have_text(NOT_KNOWN)

    assert cached(ask(operated, key, RULES)) == 0
    expect(figure(page, "Requests")).to_have_text("1")
    expect(figure(page, "Hit rate")).to_have_text("0 %")
    assert cached(ask(operated, key, RULES)) > 0
    expect(figure(page, "Requests")).to_have_text("2")
    expect(figure(page, "Hit rate")).not_to_have_text("0 %")

    open_view(page, "Overview")
    expect(figure(page, "Hit rate")).to_contain_text("of ")
    expect(page.get_by_role("img", name="Hit rate by tier")).to_be_visible()


def test_limits_and_quotas_are_set_and_a_bad_one_says_why(operated: Server, page: Page) -> None:
    name = f"globex-{uuid.uuid4().hex[:6]}"
    sign_in(page, operated)
    make_tenant(page, name)
    page.get_by_label("Floor, %").fill("60")
    page.get_by_label("Ceiling, %").fill("50")
    page.get_by_role("button", name="Save quota").click()
    expect(page.get_by_role("alert")).to_contain_text("floor")
    page.get_by_label("Floor, %").fill("20")
    page.get_by_role("button", name="Save quota").click()
    expect(page.get_by_text("Saved")).to_be_visible()
    page.get_by_label("Requests a minute").fill("600")
    page.get_by_label("Tokens of one request").fill("2000")
    page.get_by_role("button", name="Save limits").click()
    expect(page.get_by_text("Saved")).to_have_count(2)

    open_view(page, "Tenants")
    expect(row(page, "All tenants", name)).to_contain_text("2,000 tokens/request")
    expect(row(page, "All tenants", name)).to_contain_text("20.0 % to 50.0 %")
    expect(row(page, "All tenants", name)).to_contain_text("600 requests/min")


def test_groups_are_made_and_deleted(operated: Server, page: Page) -> None:
    name = f"group-{uuid.uuid4().hex[:6]}"
    sign_in(page, operated)
    open_view(page, "Tenants")
    page.get_by_role("button", name="New group").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Make group").click()
    expect(row(page, "Groups", name)).to_be_visible()
    page.get_by_role("button", name=f"Delete {name}").click()
    page.get_by_role("button", name="Delete group", exact=True).click()
    expect(page.get_by_text(name)).to_have_count(0)


def test_a_revoked_key_is_refused_and_the_refusal_is_seen(operated: Server, page: Page) -> None:
    sign_in(page, operated)
    key = make_tenant(page, f"initech-{uuid.uuid4().hex[:6]}")
    page.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Revoke key").click()
    expect(row(page, "Keys", "revoked")).to_be_visible()
    with operated.client(key) as client:
        assert client.get("/v1/models").status_code == 401
    open_view(page, "Requests")
    expect(row(page, "Last refusals", "401").first).to_be_visible()


def test_only_what_is_published_shows_its_text(operated: Server, page: Page) -> None:
    secret, shared = f"secret {uuid.uuid4().hex}", f"shared {uuid.uuid4().hex}"
    name = f"umbrella-{uuid.uuid4().hex[:6]}"
    sign_in(page, operated)
    key = make_tenant(page, name)
    ask(operated, key, f"{secret} {RULES}")

    open_view(page, "Prefixes")
    page.get_by_role("button", name="Publish a prefix").click()
    page.get_by_label("Name", exact=True).fill("house-rules")
    page.get_by_label("Content", exact=True).fill(f"{shared} {RULES}")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(row(page, "Published prefixes", "house-rules")).to_contain_text("warm")
    assert cached(ask(operated, key, f"{shared} {RULES}")) > 0, "at its first request"
    page.get_by_role("button", name="Text of house-rules").click()
    expect(page.get_by_role("dialog")).to_contain_text(shared)
    page.keyboard.press("Escape")

    open_view(page, "Cache")
    seen = _whole_tree(page)
    assert name in seen
    assert secret not in seen
    page.get_by_role("button", name="Text of house-rules").first.click()
    expect(page.get_by_role("dialog")).to_contain_text(shared)
    page.keyboard.press("Escape")

    open_view(page, "Prefixes")
    page.get_by_role("button", name="Withdraw house-rules").click()
    page.get_by_role("button", name="Withdraw prefix").click()
    expect(page.get_by_text("house-rules")).to_have_count(0)


def _whole_tree(page: Page) -> str:
    """Open every node of the tree; return the page's text."""
    closed = page.locator("button[aria-label^='What follows'][aria-expanded=false]")
    expect(closed.first).to_be_visible()
    while closed.count():
        closed.first.click()
        expect(page.get_by_text("Loading…")).to_have_count(0)
    return page.content()


def test_no_view_asks_another_host(operated: Server, visit: Callable[..., Visit]) -> None:
    visited = visit()
    sign_in(visited.page, operated)
    for name in VIEWS:
        open_view(visited.page, name)
        expect(visited.page.get_by_role("heading", level=1)).to_be_visible()
    assert len(visited.asked) > 20
    assert [url for url in visited.asked if not url.startswith(operated.url)] == []


def test_the_page_goes_on_while_the_engine_is_down(operated: Server, page: Page) -> None:
    sign_in(page, operated)
    engine = operated.children()["engine"]
    os.kill(engine, signal.SIGSTOP)
    try:
        expect(page.get_by_text("engine is down")).to_be_visible()
        open_view(page, "Tenants")
        expect(row(page, "All tenants", "demo").first).to_be_visible()
        expect(page.get_by_text("Figures of the cache are missing")).to_be_visible()
    finally:
        with suppress(ProcessLookupError):  # the server may have replaced the process already
            os.kill(engine, signal.SIGCONT)
    expect(page.get_by_text("engine is down")).to_have_count(0)


def test_what_is_shown_of_a_gateway_that_is_away_is_marked_as_stale(
    operated: Server, page: Page
) -> None:
    sign_in(page, operated)
    expect(page.get_by_text("live,")).to_be_visible()
    page.context.set_offline(True)
    expect(page.get_by_text("stale,")).to_be_visible()
    expect(page.get_by_text("The gateway does not answer. This is from")).to_be_visible()
    page.context.set_offline(False)
    expect(page.get_by_text("live,")).to_be_visible()


def test_checkpoints_are_shown_where_the_model_has_states(operated: Server, page: Page) -> None:
    sign_in(page, operated)
    open_view(page, "Cache")
    expect(page.get_by_role("heading", name="Tiers")).to_be_visible()
    expect(page.get_by_role("heading", name="Checkpoints")).to_have_count(0)

    def with_states(route: Route) -> None:
        told = route.fetch().json()
        states = {**told["states"], "total": 60, "free": 20, "checkpoints": 31, "cut_tokens": 160}
        route.fulfill(json={**told, "states": states})

    page.route("**/admin/overview*", with_states)
    page.reload()
    expect(figure(page, "Held")).to_have_text("31of 60 slots, 9 of sequences")
    expect(figure(page, "Matched beyond")).to_contain_text("160")
