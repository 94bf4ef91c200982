"""Tenants and keys that a run creates are removed, whenever the run ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cli.errors import ServerRefused
from cli.isolation.cases import CASES, IDS, PUBLISHED_CASES, Case, Cell, TierCase
from cli.isolation.fixtures import Fixture, Fixtures
from cli.isolation.reading import ProbePrompt

CASE = {case.name: case for case in (*CASES, *PUBLISHED_CASES)}


class FakeServer:
    """A server that records what admin routes create.

    From POST number `slow` on, it waits for `answer` before it replies.
    """

    def __init__(self, slow: int = 1000, refused: int = 1000) -> None:
        self.admin = self
        self.there: dict[str, dict[str, Any]] = {}
        self.created: list[dict[str, Any]] = []
        self.reached, self.answer = asyncio.Event(), asyncio.Event()
        self._slow, self._refused = slow, refused

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if method == "DELETE":
            del self.there[path]
            return None
        if method == "GET":
            return {"state": "warm"}
        if path.endswith("/keys"):
            return {"key": f"key of {path}"}
        number = len(self.created)
        if number >= self._refused:
            raise ServerRefused("full", status=409)
        self.created.append(body or {})
        self.there[f"{path}/{number}"] = body or {}
        if number >= self._slow:
            self.reached.set()
            await self.answer.wait()
        return {"id": f"{number}", "tokens": 32}

    async def new_text(self, key: str, length: int, opening: str = "") -> ProbePrompt:
        return ProbePrompt([1] * length, "text", opening)


async def made(server: FakeServer, case: Case, stack: AsyncExitStack) -> Fixture:
    fixtures = Fixtures(server, stack)  # type: ignore[arg-type]
    return await fixtures.fixture(Cell(case, TierCase.DEVICE, IDS), 64)


async def test_a_case_with_everything_and_nothing_left_of_it() -> None:
    server = FakeServer()
    async with AsyncExitStack() as stack:
        found = await made(server, CASE["for a group: member, with a salt of its own"], stack)
        kinds = [path.split("/")[2] for path in server.there]
        assert kinds == ["groups", "tenants", "tenants", "prefixes"]
        assert [one.get("group_id") for one in server.created[1:3]] == ["0", "0"]
        assert server.created[3]["scope"] == "0"
        assert (found.published, found.prompt.opening) == (32, "text")
        assert found.first.key != found.other.key
        assert (found.fields, "other-salt" in found.other_fields["cache_salt"]) == ({}, True)
    assert server.there == {}


async def test_words_that_stand_for_ids() -> None:
    async with AsyncExitStack() as stack:
        server = FakeServer()
        found = await made(server, CASE["group is named as the other's id"], stack)
        assert server.created[1] == {"name": found.first.id}
    async with AsyncExitStack() as stack:
        found = await made(FakeServer(), CASE["salt is the other's id"], stack)
        assert found.other_fields == {"cache_salt": found.first.id}
    async with AsyncExitStack() as stack:
        found = await made(FakeServer(), CASE["unset, empty"], stack)
        assert found.other is found.first
        assert (found.fields, found.other_fields) == ({}, {"cache_salt": ""})


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
async def test_what_is_being_created_when_it_is_cancelled_is_removed_too(slow: int) -> None:
    server = FakeServer(slow=slow)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await made(server, CASE["for a group: left the group"], stack)

    task = asyncio.create_task(run())
    await asyncio.wait_for(server.reached.wait(), 30)
    assert len(server.there) == slow + 1, "the control: it is in the middle of one"
    task.cancel()
    server.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.there == {}


@pytest.mark.parametrize("refused", [0, 2, 3])
async def test_a_refusal_comes_through_and_the_rest_is_removed(refused: int) -> None:
    server = FakeServer(refused=refused)
    with pytest.raises(ServerRefused):
        async with AsyncExitStack() as stack:
            await made(server, CASE["for a group: left the group"], stack)
    assert len(server.created) == refused
    assert server.there == {}
