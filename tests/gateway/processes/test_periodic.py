"""Periodic tasks continue after an unexpected error, which they log once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from gateway.auth import running_requests
from gateway.auth.keyring import Keyring
from gateway.auth.running_requests import RunningRequests
from gateway.caller import Caller
from gateway.limits.limiter import Hold
from gateway.limits.memory import MemoryLimiter
from gateway.processes import periodic
from gateway.processes.periodic import repeated
from gateway.prompts.prefix_tokens import PrefixTokens
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.requests import permits
from gateway.sharing import renewed
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.sharing.partitions import Partitions
from gateway.sharing.published import Published, PublishedParts
from gateway.state.faults import FaultWatch
from gateway.state.redis.link import connect
from gateway.state.redis.store import told_of_changes
from gateway.state.store import R
from gateway.state.usage_records import Counters, UsageRow
from gateway.tenant_limits import Prices
from gateway.usage.aggregator import UsageAggregator
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.permits import some_permits
from tests.doubles.gateway.redis_server import redis_server
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock

WITHIN_S = 20.0


class Damaged(Exception):
    """An unexpected error of a store, such as a record that cannot be decoded."""


class Luck:
    """A source of errors, which raises `failures` times and then succeeds."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.succeeded = asyncio.Event()

    def turn(self) -> None:
        if self.failures:
            self.failures -= 1
            raise Damaged
        self.succeeded.set()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, seconds in (
        (periodic, "RETRY_S"),
        (permits, "RENEW_EVERY_S"),
        (renewed, "REFRESH_S"),
        (running_requests, "CHECK_EVERY_S"),
    ):
        monkeypatch.setattr(module, seconds, 0.001)


@pytest.mark.parametrize(("failures", "logged"), [(0, 0), (1, 1), (3, 1)])
async def test_a_turn_that_fails_is_logged_once_and_tried_again(
    failures: int, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    luck = Luck(failures)

    async def turn() -> None:
        luck.turn()
        await asyncio.sleep(0.001)

    async with asyncio.timeout(WITHIN_S), repeated(turn, "the task"):
        await luck.succeeded.wait()
        if failures:  # a later series of failures logs another line
            luck.failures, luck.succeeded = 2, asyncio.Event()
            await luck.succeeded.wait()
    assert caplog.text.count("the task failed") == 2 * logged
    assert caplog.text.count("test_periodic.Damaged") == 2 * logged


async def test_it_ends_with_its_context_in_the_middle_of_a_turn() -> None:
    ended = asyncio.Event()
    began = asyncio.Event()

    async def turn() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(WITHIN_S), repeated(turn, "the task"):
        await began.wait()
        assert not ended.is_set()
    assert ended.is_set()


class UnluckyStore(MemoryStore):
    def __init__(self, luck: Luck) -> None:
        super().__init__()
        self.luck: Luck | None = luck

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
        self._turn()
        await super().add_usage(rows, batch=batch)

    async def every(self, kind: type[R]) -> list[R]:
        self._turn()
        return await super().every(kind)

    def _turn(self) -> None:
        if self.luck is not None:
            self.luck.turn()


class UnluckyLimiter(MemoryLimiter):
    def __init__(self, luck: Luck) -> None:
        super().__init__()
        self.luck = luck

    async def renew(self, holds: Sequence[Hold]) -> None:
        self.luck.turn()
        await super().renew(holds)


class UnluckyWatched:
    fault = None

    def __init__(self, luck: Luck) -> None:
        self.luck = luck

    async def check(self) -> None:
        self.luck.turn()


class UnluckyRequests(RunningRequests):
    def __init__(self, luck: Luck) -> None:
        super().__init__(Keyring(MemoryStore(), b"p" * 32))
        self.luck = luck

    async def check(self) -> None:
        self.luck.turn()
        await super().check()


class UnluckyListener:
    def __init__(self, luck: Luck) -> None:
        self.luck = luck

    def forget(self, changed_id: str) -> None:
        raise NotImplementedError(changed_id)

    def reload(self) -> None:
        self.luck.turn()


def storing_usage(luck: Luck, _: Path) -> AbstractAsyncContextManager[object]:
    aggregator = UsageAggregator(UnluckyStore(luck), ManualClock(1e9))
    aggregator.add(Caller("tn_a", "key"), Counters(requests=1))
    return aggregator.stored_regularly(interval_s=0.001)


def renewing_limits(luck: Luck, _: Path) -> AbstractAsyncContextManager[object]:
    return some_permits(UnluckyLimiter(luck), Prices()).kept()


@asynccontextmanager
async def publishing(luck: Luck, model: Path) -> AsyncIterator[None]:
    index, tokenizer = PublishedIndex(), Tokenizer.load(model)
    tokens = PrefixTokens(tokenizer, ChatTemplate.load(model, tokenizer.control))
    with ThreadPoolExecutor(1) as pool:
        parts = PublishedParts(
            UnluckyStore(luck),
            tokens.of,
            tokens.text,
            Namespaces(b"s" * 32, published=index),
            index,
            FakeEngine(),
            pool,
        )
        async with Published(parts).kept():
            yield


@asynccontextmanager
async def dividing(luck: Luck, _: Path) -> AsyncIterator[None]:
    store = UnluckyStore(luck)
    store.luck = None  # the first read belongs to the start
    async with Partitions(store, FakeEngine(), are_wanted=True).kept():
        store.luck = luck
        yield


def watching_for_faults(luck: Luck, _: Path) -> AbstractAsyncContextManager[object]:
    return FaultWatch([UnluckyWatched(luck)], lambda _: None).kept()


def checking_keys(luck: Luck, _: Path) -> AbstractAsyncContextManager[object]:
    return UnluckyRequests(luck).checked()


@asynccontextmanager
async def hearing_of_changes(luck: Luck, directory: Path) -> AsyncIterator[None]:
    with redis_server(directory) as server:
        client = connect(server.url)
        async with told_of_changes(client, UnluckyListener(luck)):
            yield
        await client.aclose()


Task = Callable[[Luck, Path], AbstractAsyncContextManager[object]]


@pytest.mark.parametrize("failures", [0, 2])
@pytest.mark.parametrize(
    "task",
    [
        storing_usage,
        renewing_limits,
        publishing,
        dividing,
        watching_for_faults,
        checking_keys,
        hearing_of_changes,
    ],
)
async def test_each_task_of_the_gateway_goes_on(
    task: Task,
    failures: int,
    tmp_path: Path,
    tiny_model: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    luck = Luck(failures)
    place = tiny_model if task is publishing else tmp_path
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(WITHIN_S), task(luck, place):
            await luck.succeeded.wait()
    assert caplog.text.count("failed, and is tried again") == bool(failures)
