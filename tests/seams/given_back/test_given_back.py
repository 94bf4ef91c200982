"""Users give back all that they take, however their waits end.

`python -m tests.seams.given_back` continues with other seeds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Protocol

import pytest

from tests.doubles.semaphores import (
    DeafSemaphore,
    DoublingSemaphore,
    ForgetfulSemaphore,
    PlainSemaphore,
    RaisingSemaphore,
    SleepySemaphore,
)
from tests.seams.given_back.games import HANDED_ON, WAITS, play_any
from tests.seams.given_back.interleaving import Resource, play

SEEDS = range(20)
PLACES = 2


class Semaphore(Protocol):
    """An interface like `asyncio.Semaphore`."""

    async def acquire(self) -> object: ...

    def release(self) -> None: ...


class Places(Resource):
    """Random use of a semaphore."""

    def __init__(self, kind: Callable[[int], Semaphore]) -> None:
        self.semaphore = kind(PLACES)
        self.inside = 0

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        del random
        await self.semaphore.acquire()
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self.semaphore.release()

    def check(self) -> None:
        assert self.inside <= PLACES

    def left(self) -> object:
        return self.inside

    async def use_all(self) -> None:
        for _ in range(PLACES):
            await self.semaphore.acquire()
        for _ in range(PLACES):
            self.semaphore.release()


@pytest.mark.parametrize("name", WAITS)
def test_all_comes_back_however_waits_end(name: str) -> None:
    ends = Counter[str]()
    for seed in SEEDS:
        ends += play_any(name, seed)
    assert min(ends["served"], ends["cancelled while waiting"], ends["cancelled inside"]) > 10


@pytest.mark.parametrize("name", HANDED_ON)
def test_all_that_is_handed_on_comes_back(name: str) -> None:
    assert sum(play_any(name, seed).total() for seed in SEEDS) > 2 * len(SEEDS)


@pytest.mark.parametrize("kind", [asyncio.Semaphore, PlainSemaphore])
def test_a_semaphore_without_a_fault_passes(kind: Callable[[int], Semaphore]) -> None:
    for seed in SEEDS:
        play(lambda _: Places(kind), seed)


@pytest.mark.parametrize(
    "kind",
    [ForgetfulSemaphore, RaisingSemaphore, SleepySemaphore, DoublingSemaphore, DeafSemaphore],
)
def test_a_semaphore_with_a_fault_is_noticed(kind: Callable[[int], Semaphore]) -> None:
    noticed = 0
    for seed in SEEDS:
        try:
            play(lambda _: Places(kind), seed)
        except (AssertionError, TimeoutError):
            noticed += 1
    assert noticed
