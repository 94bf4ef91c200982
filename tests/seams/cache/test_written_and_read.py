"""Cached tokens that are never read, by tenant and key, in the real server's reports."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server

WITHIN_S = 20.0
BLOCK = 16


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("written") / "data") as running:
        yield running


def admin(house: Server, path: str, **sent: Any) -> Any:
    with house.client(house.admin_key) as client:
        answer = client.post(f"/admin/{path}", json=sent)
        answer.raise_for_status()
        return answer.json()


def new_tenant(house: Server, group_id: str | None = None) -> str:
    tenant: str = admin(house, "tenants", name=f"tenant-{uuid.uuid4().hex}", group_id=group_id)[
        "id"
    ]
    return tenant


class Key:
    """An API key, and the key's part of the tenant's usage report."""

    def __init__(self, house: Server, tenant: str) -> None:
        issued = admin(house, f"tenants/{tenant}/keys")
        self._house = house
        self._key: str = issued["key"]
        self._id: str = issued["record"]["id"]

    def ask(self, prompt: list[int], max_tokens: int = 2) -> int:
        """Return the prompt's cached tokens."""
        body = {"model": "handbook", "prompt": prompt, "max_tokens": max_tokens}
        with self._house.client(self._key) as client:
            answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
            answer.raise_for_status()
            cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return cached

    def report(self) -> dict[str, int]:
        """Return the numbers of requests, written tokens, and written tokens never read."""
        with self._house.client(self._key) as client:
            rows = client.get("/v1/usage", params={"key": self._id}).json()["usage"]
        names = "requests", "cache_written_tokens", "cache_unread_tokens"
        return {name: sum(row[name] for row in rows) for name in names}

    def wait(self, requests: int) -> tuple[int, int]:
        """Wait until `requests` requests are stored, and return their written and unread tokens."""
        wait_for(lambda: self.report()["requests"] == requests, WITHIN_S)
        told = self.report()
        return told["cache_written_tokens"], told["cache_unread_tokens"]

    def wait_unread(self, tokens: int) -> None:
        """Wait until `tokens` tokens are unread."""
        wait_for(lambda: self.report()["cache_unread_tokens"] == tokens, WITHIN_S)


def a_prompt(seed: int, tokens: int = 200) -> list[int]:
    return [300 + (seed * 7919 + index * index) % 700 for index in range(tokens)]


def whole(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def test_what_one_key_wrote_is_read_by_the_other_and_a_lonely_prompt_by_nobody(
    house: Server,
) -> None:
    tenant = new_tenant(house)
    one, other = Key(house, tenant), Key(house, tenant)
    repeated, lonely = a_prompt(1), a_prompt(2)
    assert (one.ask(repeated), one.ask(lonely)) == (0, 0)
    assert one.wait(2) == (2 * whole(200), 2 * whole(200))
    assert other.ask(repeated) >= whole(200)
    one.wait_unread(whole(200))
    assert other.wait(1) == (0, 0)
    assert other.ask(repeated, max_tokens=40) >= whole(200)  # generated blocks are written too
    written, unread = other.wait(2)
    assert written == unread == whole(200 + 39) - whole(200)
    assert one.wait(2) == (2 * whole(200), whole(200))


def test_a_stranger_reads_nothing_and_a_member_of_the_group_does(house: Server) -> None:
    group = admin(house, "groups", name=f"group-{uuid.uuid4().hex}")["id"]
    ada, bob = (Key(house, new_tenant(house, group)) for _ in range(2))
    stranger = Key(house, new_tenant(house))
    prompt = a_prompt(3)
    ada.ask(prompt)
    stranger.ask(prompt)
    assert stranger.wait(1) == (whole(200), whole(200))
    assert ada.wait(1) == (whole(200), whole(200))
    bob.ask(prompt)
    ada.wait_unread(0)
    assert bob.wait(1) == (0, 0)
    assert stranger.wait(1) == (whole(200), whole(200))


def test_what_was_counted_outlives_the_engine(house: Server) -> None:
    one = Key(house, new_tenant(house))
    one.ask(a_prompt(4))
    before = one.wait(1)
    assert before == (whole(200), whole(200))
    os.kill(house.children()["engine"], signal.SIGKILL)
    wait_for(lambda: not house.is_ready(), 10)
    house.wait_until_ready(30)
    assert one.wait(1) == before
    one.ask(a_prompt(5))
    assert one.wait(2) == (2 * whole(200), 2 * whole(200))
