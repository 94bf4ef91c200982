"""Engines with roles that die, freeze, refuse, hang and return at random while requests run."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from engine.errors import QueueFull
from engine.link.event_messages import Finished
from tests.doubles.engine.fake_engine import at_once, hanging_at
from tests.doubles.replicas.fake_replica import FakeReplica
from tests.engine.rigs.rig import generate
from tests.gateway.replicas.rig import Asked, Disaggregated, prompt, settled


class Chaos:
    """One run of random requests, deaths and delays."""

    def __init__(self, seed: int) -> None:
        self.random, self.fleet, self.asked = Random(seed), Disaggregated(), list[Asked]()
        self.tasks: list[asyncio.Task[None]] = []

    def act(self) -> None:
        one = self.random.choice(self.fleet.replicas)
        match self.random.randrange(8):
            case 0:
                one.die()
            case 1 | 2:
                self.come(one)
            case 3:
                one.is_stalled = not one.is_stalled
            case 4:
                one.refusal = self.random.choice([None, QueueFull.code])
            case 5:
                one.computes.clear()
            case 6:
                one.pace = self.random.choice([at_once, hanging_at(0), hanging_at(2)])
            case _:
                self.fleet.set._serving.rescue()

    def come(self, one: FakeReplica) -> None:
        if one.welcome is None:
            one.come()
        one.is_stalled, one.refusal, one.pace = False, None, at_once
        one.computes.set()

    async def run(self) -> None:
        for number in range(60):
            self.act()
            request = generate(f"r{number}-0", prompt(number), max_tokens=20, block_size=16)
            asked = Asked(self.fleet, request, is_whole=number % 2 == 0)
            self.asked.append(asked)
            self.tasks.append(asyncio.create_task(asked.run()))
            for _ in range(self.random.randrange(30)):
                await asyncio.sleep(0)
            if not self.random.randrange(8):
                self.random.choice(self.tasks).cancel()
        for one in self.fleet.replicas:  # requests that hang end when their engine dies
            one.die()
            self.come(one)
        async with asyncio.timeout(20):
            await asyncio.gather(*self.tasks, return_exceptions=True)
        await settled()


async def test_whatever_engines_do_each_request_ends_once_and_nothing_is_left() -> None:
    outcomes = Counter[str]()
    for seed in range(12):
        chaos = Chaos(seed)
        await chaos.run()
        calls = chaos.fleet.router.calls
        sent = Counter(call[2] for call in calls if call[0] == "sent")
        ended = Counter(call[2] for call in calls if call[0] == "ended")
        assert sent == ended, "remote prefills as well"
        assert set(sent.values()) == {1}
        assert sum(one.running for one in chaos.fleet.replicas) == 0
        assert not chaos.fleet.set._serving._unbegun
        for asked in chaos.asked:
            assert len([end for end in asked.ends if isinstance(end, Finished)]) <= 1
            is_whole = asked.is_over and asked.error is None
            assert not is_whole or asked.tokens == prompt(int(asked.request.request_id[1:-2]))
            outcomes["whole" if is_whole else type(asked.error).__name__] += 1
        outcomes["remote"] += sum(call[2].endswith("~p") for call in calls if call[0] == "sent")
    assert outcomes["whole"] > 200, "the control: most are served"
    assert outcomes["remote"] > 100
    assert set(outcomes) <= {
        *("whole", "remote", "NoneType"),  # NoneType: requests that were cancelled
        *("EngineDied", "EngineUnavailable", "QueueFull"),
    }
