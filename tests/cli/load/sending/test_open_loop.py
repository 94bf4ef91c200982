"""Arrivals in an open loop do not wait for answers.

The server has a known speed, in virtual time.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from cli.load.sender import Body, RequestOutcome
from cli.load.sending.batching import (
    Batching,
    ContinuousBatching,
    DynamicBatching,
    StaticBatching,
)
from cli.load.sending.open_loop import Arrival, GiveUp, OpenLoop
from cli.load.slo import Slo
from tests.doubles.virtual_time import now, run_virtually


@dataclass
class PacedServer:
    """A server that answers request n after `seconds_of(n)`, and records when each request was
    sent.
    """

    seconds_of: Callable[[int], float] = lambda _: 1.0
    sent: dict[int, float] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)

    async def ask(self, body: Body) -> RequestOutcome:
        number = body["n"]
        self.sent[number] = now()
        seconds = self.seconds_of(number)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.add(number)
            raise
        return RequestOutcome(e2e_s=seconds, ttft_s=seconds / 2, sent_at=self.sent[number])


def run(
    server: PacedServer,
    times: Sequence[float],
    batching: Batching | None = None,
    give_up: GiveUp | None = None,
) -> list[RequestOutcome]:
    async def main() -> list[RequestOutcome]:
        loop = OpenLoop(server.ask, batching or ContinuousBatching(), now, give_up)
        return await loop.run([Arrival(at, {"n": number}) for number, at in enumerate(times)])

    return run_virtually(main())


def sent(server: PacedServer) -> list[float]:
    return [round(server.sent[number], 6) for number in sorted(server.sent)]


def test_arrivals_do_not_wait_for_answers() -> None:
    server = PacedServer(lambda _: 100.0)
    outcomes = run(server, [0.0, 0.5, 0.5, 2.0])
    assert sent(server) == [0.0, 0.5, 0.5, 2.0]
    assert len(outcomes) == 4
    assert [outcome.waited_s for outcome in outcomes] == pytest.approx([0.0] * 4, abs=1e-6)


def test_a_late_client_sends_all_and_counts_times_from_when_they_were_due() -> None:
    """Send all requests of a late client, with times counted from when they were due.

    A busy process delays the second arrival by half a second.
    """
    jumps = iter([0.0, 0.0, 0.0])

    async def main() -> list[RequestOutcome]:
        server = PacedServer()
        late = 0.0

        def clock() -> float:
            nonlocal late
            late += next(jumps, 0.5)
            return now() + late

        async def ask(body: Body) -> RequestOutcome:
            sent_at = clock()
            outcome = await server.ask(body)
            return RequestOutcome(e2e_s=outcome.e2e_s, ttft_s=outcome.ttft_s, sent_at=sent_at)

        loop = OpenLoop(ask, ContinuousBatching(), clock)
        return await loop.run([Arrival(0.0, {"n": 0}), Arrival(0.1, {"n": 1})])

    outcomes = run_virtually(main())
    assert len(outcomes) == 2
    late = outcomes[-1]
    assert late.waited_s >= 0.5
    assert late.ttft_s == pytest.approx(0.5 + late.waited_s)
    assert late.e2e_s == pytest.approx(1.0 + late.waited_s)
    assert late.arrived_at == pytest.approx(late.sent_at - late.waited_s)


def test_a_static_batch_waits_until_the_former_one_is_done() -> None:
    server = PacedServer(lambda number: 5.0 if number == 0 else 1.0)
    outcomes = run(server, [0.0, 1.0, 2.0, 3.0, 4.0], StaticBatching(2))
    assert sent(server) == [1.0, 1.0, 6.0, 6.0, 7.0], "0 takes until 6, and the last is alone"
    waits = {round(one.arrived_at): one.waited_s for one in outcomes}
    assert waits == {at: pytest.approx(wait, abs=1e-6) for at, wait in enumerate([1, 0, 4, 3, 3])}


def test_a_dynamic_batch_goes_when_it_is_full_or_one_has_waited_long_enough() -> None:
    server = PacedServer(lambda _: 100.0)
    run(server, [0.0, 0.1, 0.2, 5.0, 5.2, 9.0], DynamicBatching(3, 0.5))
    assert sent(server) == [0.2, 0.2, 0.2, 5.5, 5.5, 9.5]


def test_a_run_is_given_up_when_too_many_have_missed() -> None:
    server = PacedServer(lambda number: 1.0 if number < 2 else 3.0)
    times = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 50.0]
    outcomes = run(server, times, give_up=GiveUp(Slo(e2e=2.0), most_missed=1, after_s=1000.0))
    assert [outcome.e2e_s for outcome in outcomes] == pytest.approx([1, 1, 3, 3], abs=1e-6)
    assert server.cancelled == {4, 5}, "what ran is cut off, and the last is not sent"
    assert 6 not in server.sent


@pytest.mark.parametrize(("after_s", "ended"), [(2.5, 2), (1000.0, 4)])
def test_a_run_is_given_up_when_its_time_is_over(after_s: float, ended: int) -> None:
    server = PacedServer(lambda _: 1.0)
    end = GiveUp(Slo(e2e=2.0), most_missed=4, after_s=after_s)
    assert len(run(server, [0.0, 1.0, 2.0, 3.0], give_up=end)) == ended


def test_what_breaks_a_request_breaks_the_run() -> None:
    def broken(number: int) -> float:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        run(PacedServer(broken), [0.0, 1.0])
    assert raised.group_contains(ZeroDivisionError)
