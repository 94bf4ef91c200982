"""A request holds its reservation while it runs, and settles it once, however it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from engine.link.messages import Generate, SamplingParams
from gateway.caller import Caller
from gateway.errors import StateDiskFull, StateLost, TooManyRequests, Unavailable
from gateway.limits.limiter import HOLD_S, Amount, Demand, Granted, Hold, Verdict
from gateway.prompts.generation_request import AdmittedRequest, TextRules
from gateway.requests import permits as permits_module
from gateway.requests.permits import RENEW_EVERY_S, Permits
from gateway.tenant_limits import Limits, Prices, RateStatus, TokenCounts
from tests.doubles.gateway.permits import some_permits

LIMITED = Caller("tn_a", "key", limits=Limits(max_concurrent=9, tokens_per_minute=9))
PRICES = Prices(computed=1.0, cached=0.5, generated=4.0)
ADMITTED = AdmittedRequest(
    generates=tuple(
        Generate(
            request_id=str(choice),
            token_ids=b"",
            namespaces=(),
            block_keys=b"",
            flow="f",
            sampling=SamplingParams(max_tokens=10),
        )
        for choice in range(2)
    ),
    choices=2,
    prompt_tokens=100,
    text=TextRules(stops=(), include_stop=False),
)
# The budget reserves the cost of every choice. A rate whose capacity is too small reserves less.
MOST = Amount(tokens=120, cost=2 * 100 + 4 * 20)


class NotingLimiter:
    """A limiter that grants everything and records its calls; while down, it does not answer."""

    def __init__(self) -> None:
        self.is_down = False
        self.reason = Unavailable("down")
        self.is_closed = False
        self.held: dict[str, Hold] = {}
        self.used: list[Amount] = []
        self.renewed: list[list[Hold]] = []
        self.may_settle = asyncio.Event()
        self.may_settle.set()
        self.heard = asyncio.Event()
        self.settling = asyncio.Event()

    async def reserve(self, demand: Demand) -> Verdict:
        self._answer()
        self.held[demand.id] = Hold(demand)
        return Granted(self.held[demand.id], RateStatus())

    async def charge(self, hold: Hold, used: Amount) -> None:
        self.settling.set()
        await self.may_settle.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # settling takes some time
        self._answer()
        del self.held[hold.demand.id]  # raises KeyError if a request is charged twice
        self.used.append(used)

    async def renew(self, holds: Sequence[Hold]) -> None:
        self.renewed.append(list(holds))
        self.heard.set()
        self._answer()

    async def close(self) -> None:
        self.is_closed = True

    async def next_renewal(self) -> list[Hold]:
        """Wait for the next renewal; return the renewed holds."""
        self.heard.clear()
        await self.heard.wait()
        return self.renewed[-1]

    def _answer(self) -> None:
        if self.is_down:
            raise self.reason


@pytest.fixture
def limiter() -> NotingLimiter:
    return NotingLimiter()


@asynccontextmanager
async def held(
    permits: Permits, caller: Caller, admitted: AdmittedRequest, used: Callable[[], TokenCounts]
) -> AsyncIterator[RateStatus]:
    """Begin a request, tokenise it, and end it."""
    async with permits.taken(caller) as permit:
        await permit.extend(admitted)
        permit.settles(used)
        yield permit.standing


def used(tokens: TokenCounts) -> Callable[[], TokenCounts]:
    return lambda: tokens


NOTHING = used(TokenCounts())


async def test_the_most_is_reserved_and_what_was_used_is_settled(limiter: NotingLimiter) -> None:
    permits = some_permits(limiter, PRICES)
    done = TokenCounts(computed=40, cached=60, generated=5)
    async with held(permits, LIMITED, ADMITTED, used(done)):
        [hold] = limiter.held.values()
        assert (hold.demand.tenant_id, hold.demand.limits) == ("tn_a", LIMITED.limits)
        assert (hold.demand.most, hold.demand.begun) == (MOST, Amount())
        assert limiter.used == []
    assert limiter.used == [Amount(tokens=45, cost=40 + 30 + 20)]
    assert limiter.held == {}


async def test_no_more_is_spent_than_was_reserved_and_all_tokens_count(
    limiter: NotingLimiter,
) -> None:
    permits = some_permits(limiter, PRICES)
    async with held(permits, LIMITED, ADMITTED, used(TokenCounts(computed=500, generated=500))):
        pass
    assert limiter.used == [Amount(tokens=1000, cost=MOST.cost)]


async def test_a_prediction_may_be_rejected_whole_by_every_choice(limiter: NotingLimiter) -> None:
    predicting = tuple(replace(one, prediction=bytes(4 * 7)) for one in ADMITTED.generates)
    admitted = dataclasses.replace(ADMITTED, generates=predicting)
    permits = some_permits(limiter, PRICES)
    async with held(permits, LIMITED, admitted, used(TokenCounts(computed=100, generated=34))):
        [hold] = limiter.held.values()
        assert hold.demand.most == Amount(MOST.tokens + 2 * 7, MOST.cost + 4 * 2 * 7)
    assert limiter.used == [Amount(tokens=134, cost=100 + 4 * 34)]


async def test_the_room_of_a_rate_is_what_a_prediction_leaves(limiter: NotingLimiter) -> None:
    limits = Limits(tokens_per_minute=1_000, burst_s=60)
    plain = dataclasses.replace(
        ADMITTED,
        generates=(replace(ADMITTED.generates[0], sampling=SamplingParams(max_tokens=4_000)),),
        max_tokens_may_shrink=True,
    )
    predicting = dataclasses.replace(
        plain, generates=(replace(plain.generates[0], prediction=bytes(4 * 300)),)
    )
    permits, longest = some_permits(limiter, PRICES), []
    for admitted in (plain, predicting):
        async with permits.taken(Caller("tn_a", "key", limits=limits)) as permit:
            extended = await permit.extend(admitted)
            longest.append(extended.generates[0].sampling.max_tokens)
    assert longest == [900, 600]


async def test_a_request_that_fails_is_settled_by_what_it_had_used(limiter: NotingLimiter) -> None:
    permits = some_permits(limiter, PRICES)
    with pytest.raises(RuntimeError, match="the engine died"):
        async with held(permits, LIMITED, ADMITTED, used(TokenCounts(computed=7))):
            raise RuntimeError("the engine died")
    assert limiter.used == [Amount(tokens=7, cost=7)]


async def test_a_client_that_leaves_while_it_is_settled_is_settled_by_the_end(
    limiter: NotingLimiter,
) -> None:
    limiter.may_settle.clear()
    async with some_permits(limiter, PRICES).kept() as permits:

        async def request() -> None:
            async with held(permits, LIMITED, ADMITTED, used(TokenCounts(generated=1))):
                pass

        task = asyncio.create_task(request())
        await limiter.settling.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert limiter.used == []
        asyncio.get_running_loop().call_soon(limiter.may_settle.set)
        assert not limiter.is_closed
    assert limiter.used == [Amount(tokens=1, cost=4)]
    assert limiter.is_closed


async def test_requests_have_names_of_their_own_in_every_gateway(limiter: NotingLimiter) -> None:
    one, other = some_permits(limiter, PRICES), some_permits(limiter, PRICES)
    async with (
        held(one, LIMITED, ADMITTED, NOTHING),
        held(one, LIMITED, ADMITTED, NOTHING),
        held(other, LIMITED, ADMITTED, NOTHING),
    ):
        assert len(limiter.held) == 3


async def test_who_has_no_limits_needs_no_limiter(limiter: NotingLimiter) -> None:
    limiter.is_down = True
    permits = some_permits(limiter, PRICES)
    async with held(permits, Caller("tn_a", "key"), ADMITTED, NOTHING) as standing:
        assert standing == RateStatus()
    with pytest.raises(Unavailable) as refused:
        async with held(permits, LIMITED, ADMITTED, NOTHING):
            raise AssertionError("it was let in")
    assert (refused.value.code, refused.value.retry_after_s) == ("limits_unavailable", 1.0)


async def test_a_limiter_that_is_gone_by_the_end_harms_no_answer(limiter: NotingLimiter) -> None:
    permits = some_permits(limiter, PRICES)
    async with held(permits, LIMITED, ADMITTED, NOTHING):
        limiter.is_down = True
    assert limiter.used == []


async def test_a_request_counts_as_a_choice_from_its_beginning_to_its_end(
    limiter: NotingLimiter,
) -> None:
    permits = some_permits(limiter, PRICES, streams=2)
    async with permits.taken(LIMITED) as first, permits.taken(LIMITED):
        with pytest.raises(TooManyRequests, match="2 choices"):
            async with permits.taken(LIMITED):
                raise AssertionError("it was let in")
        with pytest.raises(TooManyRequests):
            first.choose(2)
        assert len(limiter.held) == 2
        await first.give_back()
        async with permits.taken(LIMITED) as third:  # a request has ended, so another one fits
            third.choose(1)
    assert limiter.held == {}


class TestRenewing:
    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(permits_module, "RENEW_EVERY_S", 0.0)

    async def test_what_runs_is_renewed_and_what_has_ended_is_not(
        self, limiter: NotingLimiter
    ) -> None:
        async with some_permits(limiter, PRICES).kept() as permits:
            async with held(permits, LIMITED, ADMITTED, NOTHING):
                assert await limiter.next_renewal() == list(limiter.held.values())
                async with held(permits, LIMITED, ADMITTED, NOTHING):
                    assert len(await limiter.next_renewal()) == 2
                assert await limiter.next_renewal() == list(limiter.held.values())
            assert await limiter.next_renewal() == []

    async def test_a_limiter_that_comes_back_hears_of_it_again(
        self, limiter: NotingLimiter
    ) -> None:
        async with (
            some_permits(limiter, PRICES).kept() as permits,
            held(permits, LIMITED, ADMITTED, NOTHING),
        ):
            limiter.is_down = True
            for _ in range(3):
                await limiter.next_renewal()
            limiter.is_down = False
            assert len(await limiter.next_renewal()) == 1

    async def test_at_the_end_nothing_is_renewed_any_more(self, limiter: NotingLimiter) -> None:
        async with some_permits(limiter, PRICES).kept():
            await limiter.next_renewal()
        told = len(limiter.renewed)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(limiter.renewed) == told


def test_a_hold_outlasts_a_renewal_that_is_missed() -> None:
    assert 0 < 2 * RENEW_EVERY_S < HOLD_S


@pytest.mark.parametrize(
    ("reason", "kind", "code"),
    [
        (Unavailable("locked"), Unavailable, "limits_unavailable"),
        (StateDiskFull(), StateDiskFull, "disk_full"),
        (StateLost("limits_damaged"), StateLost, "limits_damaged"),
    ],
)
async def test_why_limits_cannot_be_kept_is_said(
    limiter: NotingLimiter, reason: Unavailable, kind: type[Unavailable], code: str
) -> None:
    limiter.is_down, limiter.reason = True, reason
    with pytest.raises(Unavailable) as refused:
        async with some_permits(limiter, PRICES).taken(LIMITED):
            raise AssertionError("it was let in")
    error = refused.value
    assert (type(error), error.code, error.status) == (kind, code, 503)
