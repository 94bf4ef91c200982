"""Clients are charged for the tokens that the engine computed, whatever their pace.

The test sends 1,000 requests of clients that read slowly, in pieces, or stop, to engines that go on
computing after a cancel. In runs with an odd seed, engines also die. To run longer, or from another
seed:

    RATOON_PROPERTY_SECONDS=3600 RATOON_PROPERTY_SEED=7 python -m pytest tests/gateway/usage/ledger
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from gateway.replicas.engine_set import EngineSet
from gateway.routing.route import OwnRouting
from gateway.routing.routers.least_outstanding import LeastOutstandingRouter
from gateway.tenant_limits import TokenCounts
from tests.doubles.replicas.fake_replica import FakeReplica
from tests.gateway.usage.ledger.asking import some_pace, some_request, told
from tests.gateway.usage.ledger.client import ask
from tests.gateway.usage.ledger.house import PRICES, House, house
from tests.gateway.usage.ledger.replicas import (
    RandomReplica,
    UntoldReplica,
    own_count,
    upheaval,
)

LANES = 10  # number of tenants, each with one request at a time
REQUESTS = 50  # number of requests of each tenant
PLAY_S = float(os.environ.get("RATOON_PROPERTY_SECONDS", "0"))
STORED_AFTER = 200  # number of checks, a tenth of a second apart


@dataclass
class Lane:
    """One tenant's requests, and the errors in their charges."""

    house: House
    replicas: list[FakeReplica]
    tenant_id: str
    key: str
    counted: TokenCounts = field(
        default_factory=TokenCounts
    )  # tokens computed by the engines, without lost counts
    lost: int = 0  # tokens charged although an engine's count is lost
    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    async def ask(self, random: Random) -> None:
        """Send another random request."""
        asking, pace = some_request(random), some_pace(random)
        before = self.house.books.charged(self.tenant_id)
        answer = await ask(self.house, asking.encoded(self.key), pace, random)
        after = self.house.books.charged(self.tenant_id)
        tokens, cost = after[0] - before[0], after[1] - before[1]
        own, said = own_count(self.replicas, self.tenant_id, asking.sharing), told(asking, answer)
        if own.is_lost:
            self.lost += tokens
            is_right = tokens <= own.tokens.worked
        else:
            self.counted = plus(self.counted, own.tokens)
            is_right = (tokens, cost) == (own.tokens.worked, PRICES.cost(own.tokens))
            is_right = is_right and said in (None, own.shown)
        if not is_right:
            self.wrong.append(f"{asking} at {pace}: {own}, told {said}, {tokens} for {cost}")
        self.seen["told"] += said is not None
        self.seen["left"] += not answer.is_whole
        self.seen["cut off"] += b"answer_not_read" in answer.body
        self.seen["too large"] += b"too large to be sent whole" in answer.body
        self.seen["lost"] += own.is_lost
        self.seen["moved"] += own.attempts > 0

    async def stored(self) -> TokenCounts:
        """Return the stored usage, once it contains all charges."""
        tokens, _ = self.house.books.charged(self.tenant_id)
        for _ in range(STORED_AFTER):
            found = await self.house.usage(self.tenant_id)
            if found.worked >= tokens:
                break
            await asyncio.sleep(0.1)
        return found

    async def check_usage(self) -> None:
        """Compare the stored usage with the charges and the computed tokens."""
        found = await self.stored()
        is_right = found.worked == self.counted.worked + self.lost
        if not self.lost:
            is_right = is_right and found == self.counted
        if not is_right:
            self.wrong.append(f"usage has {found}; counted {self.counted}, lost {self.lost}")


def plus(one: TokenCounts, other: TokenCounts) -> TokenCounts:
    return TokenCounts(
        one.computed + other.computed,
        one.cached + other.cached,
        one.generated + other.generated,
    )


async def run(
    model: Path,
    data_dir: Path,
    seed: int,
    kind: type[RandomReplica] = RandomReplica,
    requests: int = REQUESTS,
) -> tuple[list[str], Counter[str]]:
    """Run `requests` requests of each tenant; return the errors, and how often each case
    occurred.
    """
    random = Random(seed)
    replicas: list[FakeReplica] = [kind(name, random) for name in "abc"]
    engines = EngineSet({one.name: one for one in replicas}, OwnRouting(LeastOutstandingRouter()))
    async with engines.kept(), house(model, data_dir, engines) as gateway:
        lanes = [
            Lane(gateway, replicas, *await gateway.tenant(f"lane {number}"))
            for number in range(LANES)
        ]

        async def go(lane: Lane) -> None:
            for _ in range(requests):
                await lane.ask(random)

        has_deaths = seed % 2 == 1
        dying = asyncio.ensure_future(upheaval(replicas[1:] if has_deaths else [], random))
        await asyncio.gather(*map(go, lanes))
        dying.cancel()
        await asyncio.gather(*(lane.check_usage() for lane in lanes))
        assert len(gateway.kind.backlogs) == len(gateway.kind.gathered) == 0
    seen = sum((lane.seen for lane in lanes), Counter[str]())
    return list(itertools.chain.from_iterable(lane.wrong for lane in lanes)), seen


def seeds() -> Iterator[int]:
    """Yield two seeds, or, if a time is given, seeds from the given one until the time is over."""
    first = int(os.environ.get("RATOON_PROPERTY_SEED", "0"))
    until = time.monotonic() + PLAY_S
    for seed in itertools.count(first):
        yield seed
        if seed > first and time.monotonic() > until:
            return


@pytest.mark.timeout(600 + PLAY_S)
async def test_what_engines_compute_is_told_and_charged_to_the_token(
    tiny_model: Path, tmp_path: Path
) -> None:
    seen = Counter[str]()
    for seed in seeds():
        wrong, more = await run(tiny_model, tmp_path / str(seed), seed)
        assert not wrong, f"seed {seed}: " + "\n".join(wrong)
        seen += more
    assert seen["told"] > 200, seen
    assert seen["left"] > 150, seen
    assert min(seen[one] for one in ("cut off", "too large", "lost", "moved")) > 0, seen


async def test_charges_by_what_was_read_are_noticed(tiny_model: Path, tmp_path: Path) -> None:
    wrong, _ = await run(tiny_model, tmp_path, 0, UntoldReplica, requests=10)
    assert len(wrong) > 10
