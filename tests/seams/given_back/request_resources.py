"""Resources for the games that the gateway's requests use: permits and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import TypeVar

from engine.link.messages import Generate, SamplingParams
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.dialects.keep_alive import with_pauses
from gateway.errors import AnswerTooLarge, LimitReached, TooManyRequests, Unavailable
from gateway.generation.choice import Delta, Event
from gateway.generation.generation import _merged
from gateway.http.answers.whole_answer import GatheredAnswers, gathered_by
from gateway.http.body_memory import BodyMemory
from gateway.http.request_head import ClientGone, RunningRequest, until_gone
from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import Amount, Demand, Denied, Granted, Hold, Verdict
from gateway.limits.open_streams import OpenStreams
from gateway.limits.redis import Owed, RedisLimiter, _member, as_begun
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.prompts.generation_request import AdmittedRequest, TextRules
from gateway.requests.permits import Permits
from gateway.state.redis.link import RedisLink
from gateway.tenant_limits import Limits, Prices, RateStatus
from tests.seams.given_back.gateway_resources import KIB, TENANTS, link_to_nobody
from tests.seams.given_back.interleaving import WAIT_S, Resource

T = TypeVar("T")

ADMITTED = AdmittedRequest(
    generates=(
        Generate(
            request_id="",
            token_ids=b"",
            namespaces=(),
            block_keys=b"",
            flow="f",
            sampling=SamplingParams(max_tokens=10),
        ),
    ),
    choices=1,
    prompt_tokens=100,
    text=TextRules(stops=(), include_stop=False),
)


class SlowRedis(RedisLimiter):
    """A limiter over a slow Redis, which counts concurrent requests as members of a set."""

    def __init__(self, link: RedisLink, random: Random) -> None:
        super().__init__(link)
        self.held: set[str] = set()
        self.is_slow = True
        self._link = link
        self._random = random

    async def reserve_owing(self, demand: Demand, owed: Sequence[Owed]) -> Verdict:
        del owed
        return await self._answer(lambda: self._reserve_now(demand))

    async def charge(self, hold: Hold, used: Amount, *, again: bool = False) -> None:
        del used, again
        await self._answer(lambda: self.held.discard(_member(hold.demand)))

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Do nothing, since holds do not lapse here."""

    def _reserve_now(self, demand: Demand) -> Verdict:
        begun = None if demand.begun is None else _member(as_begun(demand, demand.begun))
        most = demand.limits.max_concurrent
        if begun is None and most is not None and len(self.held) >= most:
            return Denied("concurrent", RateStatus(), None)
        self.held.discard(begun or "")
        self.held.add(_member(demand))
        return Granted(Hold(demand, "epoch"), RateStatus())

    async def _answer(self, change: Callable[[], T]) -> T:
        async def work() -> T:
            await self._some_time()
            changed = change()
            await self._some_time()
            return changed

        return await self._link.run(work)

    async def _some_time(self) -> None:
        times = (0, 0, 0, 1.0, WAIT_S / 2, WAIT_S) if self.is_slow else (0,)
        await asyncio.sleep(self._random.choice(times))


class PermitsOverRedis(Resource):
    """Random use of permits: streams, body memory, and holds in Redis or in this process."""

    refusals = (LimitReached, TooManyRequests, Unavailable)
    limits = Limits(max_concurrent=3, tokens_per_minute=10**8)

    def __init__(self, random: Random) -> None:
        loop = asyncio.get_running_loop()
        self.redis = SlowRedis(link_to_nobody(), random)
        self.limiter = GuardedLimiter(self.redis, replicas=1)
        self.bodies = BodyMemory(
            Bounds(max_tenant_body_bytes=KIB, max_all_body_bytes=16 * KIB, body_wait_s=WAIT_S)
        )
        self.streams = OpenStreams(8)
        self.permits = Permits(
            self.limiter, Prices(), self.streams, self.bodies, RefusalThrottle(loop.time)
        )
        self.renewing: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        caller = Caller("tn", "key", limits=self.limits if random.randrange(6) else Limits())
        async with self.permits.taken(caller) as permit:
            await permit.body.grow(random.choice((1, KIB // 4, KIB)))
            permit.choose(random.randrange(1, 4))
            await permit.extend(ADMITTED)
            yield

    def settle(self) -> None:
        """Renew the holds, as the gateway does every few seconds."""
        if not self.renewing:
            task = asyncio.create_task(self.limiter.renew([]))
            self.renewing.append(task)
            task.add_done_callback(self.renewing.remove)

    def check(self) -> None:
        assert len(self.streams) <= 8
        assert len(self.bodies) <= KIB

    def left(self) -> object:
        alone = [account.holds for account in self.limiter._alone._accounts.values()]
        catching_up = self.limiter._catching_up
        is_catching_up = catching_up is not None and not catching_up.done()
        here = [self.permits._holds, self.permits._settling, self.limiter._uncharged, *alone]
        rest = [self.redis.held, self.renewing, self.bodies._held, self.bodies._waiting]
        counted = [len(self.streams), 16 - self.redis._link._turns._value, is_catching_up]
        return [one for one in (*here, *rest, *counted) if one]

    async def use_all(self) -> None:
        await asyncio.sleep(2 * WAIT_S)
        self.redis.is_slow = False
        verdicts = []
        for number in range(self.limits.max_concurrent or 0):
            demand = Demand(str(number), "tn", self.limits, Amount())
            verdicts.append(await self.limiter.reserve(demand))
        for verdict in verdicts:
            assert isinstance(verdict, Granted)
            await self.limiter.charge(verdict.hold, Amount())
        self.redis.is_slow = True
        self.streams.take("tn", 8)
        self.streams.give_back("tn", 8)


class WholeAnswers(Resource):
    """Random use of answer memory. If an answer has no room to grow, the largest answer ends."""

    refusals = (AnswerTooLarge, TooManyRequests, Unavailable)

    def __init__(self) -> None:
        self.memory = GatheredAnswers(
            Bounds(
                max_answer_bytes=4 * KIB,
                max_tenant_answer_bytes=8 * KIB,
                max_all_answer_bytes=12 * KIB,
            )
        )

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        running = RunningRequest(task)
        running.tenant_id = random.choice(TENANTS)
        before = running.error
        with running.at_end:
            held = gathered_by(running, self.memory)
            try:
                for _ in range(random.randrange(1, 6)):
                    held.grow(random.choice((KIB // 2, KIB, -KIB // 2)) if held.size else KIB)
                    await asyncio.sleep(random.choice((0, 0, 1.0)))
                yield
            except asyncio.CancelledError:
                # the client of the request has left at the same time
                if running.error is before or task.cancelling() > 1:
                    raise
                raise running.error from None

    def check(self) -> None:
        assert 0 <= len(self.memory) <= 12 * KIB
        assert all(0 < size <= 8 * KIB for size in self.memory._held.values())
        assert len(self.memory) == sum(self.memory._held.values())

    def left(self) -> object:
        return [*self.memory._held.items(), *self.memory._open.items()]

    async def use_all(self) -> None:
        for tenant_id in "ab":
            running = RunningRequest(None)
            running.tenant_id = tenant_id
            with running.at_end:
                gathered_by(running, self.memory).grow(4 * KIB)
                assert len(self.memory) == 4 * KIB


class Sequences:
    """The running sequences of an engine. Ending one takes a few turns of the event loop."""

    def __init__(self) -> None:
        self.running = 0

    async def events(self, random: Random) -> AsyncGenerator[Event, None]:
        self.running += 1
        try:
            for _ in range(random.randrange(1, 5)):
                await asyncio.sleep(random.choice((0, 0, 1.0, WAIT_S)))
                yield Delta(0, "", (), None)
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                self.running -= 1


class Answers(Resource):
    """The streaming of answers, with merged choices and keep-alives, to clients that leave."""

    refusals = (ClientGone,)

    def __init__(self) -> None:
        self.sequences = Sequences()
        self.clients: list[asyncio.Event] = []  # set once the clients have left

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        gone = asyncio.Event()
        self.clients.append(gone)

        async def receive() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        await until_gone(receive, self.answer(random))
        yield

    async def answer(self, random: Random) -> None:
        choices = [self.sequences.events(random) for _ in range(random.randrange(1, 4))]
        most = random.randrange(1, 8)
        async with (
            _merged(choices, random.randrange(1, 4)) as merged,
            aclosing(with_pauses(merged, 1.0)) as shown,
        ):
            async for _ in shown:
                most -= 1
                if not most:
                    return

    def stir(self, random: Random) -> None:
        if self.clients:
            random.choice(self.clients).set()

    def left(self) -> object:
        return self.sequences.running

    async def use_all(self) -> None:
        await self.answer(Random(0))
