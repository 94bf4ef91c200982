"""Workers ask each other for data, so that any worker's page shows the data of all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.running_requests import RunningRequests
from gateway.diagnosis.cache_miss import CacheMiss
from gateway.diagnosis.misses import LastMisses
from gateway.http.request_head import RunningRequest
from gateway.overview.known import Known, ToldWorker
from gateway.overview.siblings import Siblings
from gateway.telemetry.refusals import LastRefusals, Refusal
from tests.gateway.support.manual_clock import ManualClock

NO_KEYS: Any = None  # these tests check no API key


def worker(pid: int, clock: ManualClock, directory: Path | None) -> Known:
    return Known(
        ToldWorker(pid, 100.0 + pid),
        LastRefusals(),
        RunningRequests(NO_KEYS),
        LastMisses(clock),
        Siblings(directory, pid),
    )


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[list[Known]]:
    clock = ManualClock()
    found = [worker(pid, clock, tmp_path) for pid in (1, 2, 3)]
    async with AsyncExitStack() as stack:
        for one in found:
            await stack.enter_async_context(one.siblings.told(one.told))
        yield found


def refusal(at: float, code: str) -> Refusal:
    return Refusal(
        at=at,
        request_id=f"r{at}",
        client_id=None,
        tenant=None,
        route="/v1/models",
        status=401,
        code=code,
        message="no",
    )


async def test_refusals_of_all_are_listed_by_time_and_counted(workers: list[Known]) -> None:
    for at, (one, code) in enumerate(zip(workers, ("a", "b", "a"), strict=True)):
        one.kept.add(refusal(float(at), code))
    for one in workers:
        told = await one.refusals()
        assert [entry.request_id for entry in told.last] == ["r2.0", "r1.0", "r0.0"]
        assert told.by_code == {"a": 2, "b": 1}


async def test_requests_of_tenants_are_those_of_all(workers: list[Known]) -> None:
    for number, one in enumerate(workers):
        running = RunningRequest(None)
        running.tenant_id, running.route = f"tn_{number}", "/v1/messages"
        one.under_way.add(b"digest", running)
    # the request is not admitted yet, so its tenant is unknown
    workers[0].under_way.add(b"digest", RunningRequest(None))
    for one in workers:
        told = await one.requests()
        assert {entry.tenant_id for entry in told} == {"tn_0", "tn_1", "tn_2"}
        assert {entry.route for entry in told} == {"/v1/messages"}


async def test_a_tenant_that_looks_at_one_is_watched_by_all(workers: list[Known]) -> None:
    one, other, _ = workers
    assert not other.missed.is_watched("tn_a")
    assert await one.misses("tn_a") == []
    assert other.missed.is_watched("tn_a")
    missed = CacheMiss(reason="tools_changed", cached_tokens=0, lost_tokens=10)
    other.missed.add("tn_a", "r", missed)
    other.missed.add("tn_b", "r", missed)  # a tenant that does not watch its page
    (told,) = await one.misses("tn_a")
    assert (told.request_id, told.tokens) == ("r", 10)
    assert await one.misses("tn_b") == [], "nobody sees another tenant's"


async def test_the_dead_are_passed_over_and_the_silent_named(
    workers: list[Known], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as hangs:
        gone.bind(str(tmp_path / "8.sock"))
        hangs.bind(str(tmp_path / "9.sock"))
        hangs.listen()
        told, silent = await workers[1].workers()
    assert [one.pid for one in told] == [2, 1, 3]
    assert silent == [9]


async def test_one_worker_alone_asks_nobody() -> None:
    alone = worker(1, ManualClock(), None)
    async with alone.siblings.told(alone.told):
        alone.kept.add(refusal(1.0, "a"))
        assert len((await alone.refusals()).last) == 1
        assert await alone.workers() == ([alone.worker], [])


async def test_its_socket_goes_with_it_and_a_left_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "1.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    one = worker(1, ManualClock(), tmp_path)
    async with one.siblings.told(one.told):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()
    assert not path.exists()
