"""What a request reserves is held while it runs and settled once, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from engine.messages import Generate, SamplingParams
from gateway.admission import Admitted, TextRules
from gateway.caller import Caller
from gateway.errors import Unavailable
from gateway.limits import gate as gate_module
from gateway.limits.gate import RENEW_EVERY_S, LimitGate
from gateway.limits.limiter import HOLD_S, Amount, Demand, Granted, Hold, LimiterDown, Verdict
from gateway.limits.limits import Limits
from gateway.limits.prices import Prices, Tokens
from gateway.limits.standing import Standing

LIMITED = Caller("tn_a", "key", limits=Limits(max_concurrent=9))
PRICES = Prices(computed=1.0, cached=0.5, generated=4.0)
ADMITTED = Admitted(
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
MOST = Amount(tokens=120, cost=100 + 4 * 20)


class NotingLimiter:
    """Grants everything, and notes what it was told. Down, it answers nothing."""

    def __init__(self) -> None:
        self.is_down = False
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
        return Granted(self.held[demand.id], Standing())

    async def settle(self, hold: Hold, used: Amount) -> None:
        self.settling.set()
        await self.may_settle.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # it takes its time
        self._answer()
        del self.held[hold.demand.id]  # once
        self.used.append(used)

    async def renew(self, holds: Sequence[Hold]) -> None:
        self.renewed.append(list(holds))
        self.heard.set()
        self._answer()

    async def close(self) -> None:
        self.is_closed = True

    async def next_renewal(self) -> list[Hold]:
        """One that begins from now on."""
        self.heard.clear()
        await self.heard.wait()
        return self.renewed[-1]

    def _answer(self) -> None:
        if self.is_down:
            raise LimiterDown("down")


@pytest.fixture
def limiter() -> NotingLimiter:
    return NotingLimiter()


def used(tokens: Tokens) -> Callable[[], Tokens]:
    return lambda: tokens


NOTHING = used(Tokens())


async def test_the_most_is_reserved_and_what_was_used_is_settled(limiter: NotingLimiter) -> None:
    gate = LimitGate(limiter, PRICES)
    done = Tokens(computed=40, cached=60, generated=5)
    async with gate.held(LIMITED, ADMITTED, used(done)):
        [held] = limiter.held.values()
        assert (held.demand.tenant_id, held.demand.limits) == ("tn_a", LIMITED.limits)
        assert held.demand.most == MOST
        assert limiter.used == []
    assert limiter.used == [Amount(tokens=45, cost=40 + 30 + 20)]
    assert limiter.held == {}


async def test_no_more_is_settled_than_was_reserved(limiter: NotingLimiter) -> None:
    gate = LimitGate(limiter, PRICES)
    async with gate.held(LIMITED, ADMITTED, used(Tokens(computed=500, generated=500))):
        pass
    assert limiter.used == [MOST]


async def test_a_request_that_fails_is_settled_by_what_it_had_used(limiter: NotingLimiter) -> None:
    gate = LimitGate(limiter, PRICES)
    with pytest.raises(RuntimeError, match="the engine died"):
        async with gate.held(LIMITED, ADMITTED, used(Tokens(computed=7))):
            raise RuntimeError("the engine died")
    assert limiter.used == [Amount(tokens=7, cost=7)]


async def test_a_client_that_leaves_while_it_is_settled_is_settled_by_the_end(
    limiter: NotingLimiter,
) -> None:
    limiter.may_settle.clear()
    async with LimitGate(limiter, PRICES).kept() as gate:

        async def request() -> None:
            async with gate.held(LIMITED, ADMITTED, used(Tokens(generated=1))):
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
    one, other = LimitGate(limiter, PRICES), LimitGate(limiter, PRICES)
    async with (
        one.held(LIMITED, ADMITTED, NOTHING),
        one.held(LIMITED, ADMITTED, NOTHING),
        other.held(LIMITED, ADMITTED, NOTHING),
    ):
        assert len(limiter.held) == 3


async def test_who_has_no_limits_needs_no_limiter(limiter: NotingLimiter) -> None:
    limiter.is_down = True
    gate = LimitGate(limiter, PRICES)
    async with gate.held(Caller("tn_a", "key"), ADMITTED, NOTHING) as standing:
        assert standing == Standing()
    with pytest.raises(Unavailable) as refused:
        async with gate.held(LIMITED, ADMITTED, NOTHING):
            raise AssertionError("it was let in")
    assert (refused.value.code, refused.value.retry_after_s) == ("limits_unavailable", 1.0)


async def test_a_limiter_that_is_gone_by_the_end_harms_no_answer(limiter: NotingLimiter) -> None:
    gate = LimitGate(limiter, PRICES)
    async with gate.held(LIMITED, ADMITTED, NOTHING):
        limiter.is_down = True
    assert limiter.used == []


class TestRenewing:
    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gate_module, "RENEW_EVERY_S", 0.0)

    async def test_what_runs_is_renewed_and_what_has_ended_is_not(
        self, limiter: NotingLimiter
    ) -> None:
        async with LimitGate(limiter, PRICES).kept() as gate:
            async with gate.held(LIMITED, ADMITTED, NOTHING):
                assert await limiter.next_renewal() == list(limiter.held.values())
                async with gate.held(LIMITED, ADMITTED, NOTHING):
                    assert len(await limiter.next_renewal()) == 2
                assert await limiter.next_renewal() == list(limiter.held.values())
            assert await limiter.next_renewal() == []

    async def test_a_limiter_that_comes_back_hears_of_it_again(
        self, limiter: NotingLimiter
    ) -> None:
        async with (
            LimitGate(limiter, PRICES).kept() as gate,
            gate.held(LIMITED, ADMITTED, NOTHING),
        ):
            limiter.is_down = True
            for _ in range(3):
                await limiter.next_renewal()
            limiter.is_down = False
            assert len(await limiter.next_renewal()) == 1

    async def test_at_the_end_nothing_is_renewed_any_more(self, limiter: NotingLimiter) -> None:
        async with LimitGate(limiter, PRICES).kept():
            await limiter.next_renewal()
        told = len(limiter.renewed)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(limiter.renewed) == told


def test_a_hold_outlasts_a_renewal_that_is_missed() -> None:
    assert 0 < 2 * RENEW_EVERY_S < HOLD_S
