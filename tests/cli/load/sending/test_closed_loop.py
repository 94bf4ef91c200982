import asyncio

from cli.load.sender import RequestOutcome
from cli.load.sending.closed_loop import closed_loop


class SlowTeller:
    """A server that answers when a test says so, and counts concurrent requests."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.waiting: list[asyncio.Future[None]] = []

    async def ask(self, body: dict[str, int]) -> RequestOutcome:
        self.asked.append(body["n"])
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(answer)
        await answer
        return RequestOutcome(e2e_s=float(body["n"]))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_closed_loop_asks_the_next_when_one_ends() -> None:
    teller = SlowTeller()
    seen: list[RequestOutcome] = []
    bodies = [({"n": n},) for n in range(5)]
    loop = asyncio.create_task(closed_loop(bodies, 2, teller.ask, seen.append))
    await settle()
    assert teller.asked == [0, 1]
    teller.waiting[1].set_result(None)
    await settle()
    assert teller.asked == [0, 1, 2]
    assert [outcome.e2e_s for outcome in seen] == [1.0]
    while not loop.done():
        for answer in teller.waiting:
            if not answer.done():
                answer.set_result(None)
        await settle()
    assert teller.asked == [0, 1, 2, 3, 4]
    assert sorted(outcome.e2e_s for outcome in loop.result()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert loop.result() == seen


async def test_more_callers_than_requests_is_fine() -> None:
    async def ask(body: dict[str, int]) -> RequestOutcome:
        return RequestOutcome(e2e_s=1.0)

    assert len(await closed_loop([[{"n": 1}]], 100, ask)) == 1
    assert await closed_loop([], 3, ask) == []
