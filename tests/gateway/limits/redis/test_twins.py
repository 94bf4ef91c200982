"""`account` and `scripts` decide alike: the same requests at the same times get the same
numbers.
"""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.limits.limiter import Amount, Demand, Granted, Hold, Limiter, Verdict
from gateway.tenant_limits import Budget, Limits
from tests.doubles.gateway.redis_server import RedisServer
from tests.gateway.limits.homes import Home, memory_home, redis_home

LIMITS = [
    Limits(requests_per_minute=30, burst_s=8),
    Limits(tokens_per_minute=700, burst_s=31, max_concurrent=4),
    Limits(tokens_per_minute=700, budget=Budget(units=0.004, period="total")),
    Limits(requests_per_minute=90, tokens_per_minute=997, budget=Budget(units=0.003)),
    Limits(max_concurrent=2, budget=Budget(units=0.002)),
]

turns = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 4), st.integers(0, 400), st.integers(0, 2000)),
        st.tuples(st.just("ask on"), st.integers(0, 9), st.integers(0, 400), st.integers(0, 2000)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 400), st.integers(0, 2000)),
        st.tuples(st.just("renew"), st.integers(0, 9), st.just(0), st.just(0)),
        st.tuples(
            st.just("wait"),
            st.sampled_from([0, 1, 700, 13_337, 61_000, 3_000_000]),
            st.integers(0, 999),
            st.just(0),
        ),
        st.tuples(
            st.just("jump back"),
            st.one_of(st.integers(1, 9000), st.just(9_000_000)),
            st.just(0),
            st.just(0),
        ),
    ),
    max_size=30,
)
Turn = tuple[str, int, int, int]


def asks_on(hold: Hold, most: Amount) -> Demand:
    """Make the second demand of a request that has begun, when its usage is known."""
    return msgspec.structs.replace(hold.demand, most=most, begun=hold.demand.most)


class Player:
    """A player of turns against one limiter."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.holds: list[Hold] = []

    async def play(self, number: int, turn: Turn) -> tuple[object, ...] | None:
        what, which, tokens, cost = turn
        if what == "reserve":
            demand = Demand(f"r{number}", "tn_a", LIMITS[which], Amount(tokens, cost))
            return self._said(await self.limiter.reserve(demand))
        if not self.holds:
            return None
        hold = self.holds[which % len(self.holds)]
        if what == "ask on":
            return self._said(await self.limiter.reserve(asks_on(hold, Amount(tokens, cost))))
        if what == "settle":
            # the usage may exceed its reservation
            used = Amount(tokens, min(cost, hold.demand.most.cost))
            await self.limiter.charge(hold, used)
        elif what == "renew":
            await self.limiter.renew([hold])
        return None

    def _said(self, verdict: Verdict) -> tuple[object, ...]:
        if isinstance(verdict, Granted):
            asked = verdict.hold.demand.id
            self.holds = [hold for hold in self.holds if hold.demand.id != asked]
            self.holds.append(verdict.hold)
            return ("granted", verdict.standing)
        return (verdict.reason, verdict.standing, verdict.retry_after_s)


async def play_all(home: Home, turns: list[Turn]) -> list[tuple[object, ...] | None]:
    """Play all turns; return the store's answers."""
    player, said = Player(home.limiter), []
    for number, turn in enumerate(turns):
        what, amount, fraction, _ = turn
        if what in ("wait", "jump back"):
            seconds = amount if what == "wait" else -amount
            home.advance(seconds + fraction / 1024)
        else:
            said.append(await player.play(number, turn))
    return said


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=turns)
def test_lua_and_python_agree(limits_redis: RedisServer, turns: list[Turn]) -> None:
    async def in_redis() -> list[tuple[object, ...] | None]:
        with redis_home(limits_redis) as home:
            try:
                return await play_all(home, turns)
            finally:
                await home.limiter.close()
                await home.sibling.close()

    assert asyncio.run(in_redis()) == asyncio.run(play_all(memory_home(), turns))
