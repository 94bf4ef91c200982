"""Engines that send random tokens at any pace, die and return, and count the tokens they
compute.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from engine.errors import NumericFailure, QueueFull
from engine.link.event_messages import Finished, Tokens
from engine.link.interface import OnEnd
from engine.link.messages import Generate
from gateway.tenant_limits import TokenCounts
from tests.doubles.engine.fake_engine import Computed
from tests.doubles.replicas.fake_replica import FakeReplica
from tests.gateway.usage.ledger.asking import ALPHABET


class RandomReplica(FakeReplica):
    """An engine that computes for a while after a cancel, and may cache no blocks."""

    def __init__(self, name: str, random: Random) -> None:
        super().__init__(name)
        self._random = random
        self.script, self.pace = self._says, self._takes

    def _says(self, _: Generate) -> list[int]:
        random = self._random
        self.per_step, self.cancel_turns = random.choice([1, 1, 3]), random.randrange(12)
        if not random.randrange(4):  # as if a limit left almost no room
            self.lose_cache()
        return list("".join(random.choices(ALPHABET, k=random.choice([10, 300]))).encode())

    async def _takes(self, _: Generate, at: int) -> None:
        for _turn in range(self._random.choice([1, 1, 1, 4])):
            await asyncio.sleep(0)
        if not self._random.randrange(3000):
            raise QueueFull("full") if at == 0 else NumericFailure("not finite")


class UntoldReplica(RandomReplica):
    """A replica that reports no ends, so that a request is charged by the tokens its client
    read.
    """

    def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        del on_end
        return super().generate(request)


async def upheaval(replicas: Sequence[FakeReplica], random: Random) -> None:
    """Let one replica after the other die and return, for ever; without replicas, do nothing."""
    while replicas:
        one = random.choice(replicas)
        one.die()
        for _ in range(random.randrange(60)):
            await asyncio.sleep(0)
        one.come()
        for _ in range(random.randrange(800)):
            await asyncio.sleep(0)


@dataclass(frozen=True)
class OwnCount:
    """The tokens that engines have computed for one request.

    `is_lost`: some tokens may be missing, as an engine died.

    `shown`: the tokens in the answer's usage. Of the choices that share a prompt, only the choice
    that computed most of the prompt counts it.
    """

    tokens: TokenCounts
    shown: TokenCounts
    is_lost: bool
    attempts: int  # number of attempts, at least the number of choices


def own_count(replicas: Iterable[FakeReplica], tenant_id: str, sharing: int) -> OwnCount:
    """Count the tokens of a tenant's only request since the last call.

    If there were several attempts, the last one counts. A prompt's cached tokens count once.
    """
    attempts = dict[int, dict[int, Computed]]()
    for replica in replicas:
        for request_id in [*replica.computed]:
            if replica.computed[request_id].flow != tenant_id:
                continue
            choice, _, attempt = request_id.rpartition("-")[2].partition("~")
            of_choice = attempts.setdefault(int(choice), {})
            of_choice[int(attempt or 0)] = replica.computed.pop(request_id)
    last = {choice: tried[max(tried)] for choice, tried in attempts.items()}
    by_prompt = defaultdict[int, list[Computed]](list)
    for index, did in last.items():
        by_prompt[index // sharing].append(did)
    most = [max(tried, key=lambda did: did.prompt) for tried in by_prompt.values()]
    shown = TokenCounts(
        sum(did.prompt for did in most),
        sum(did.cached for did in most),
        sum(did.generated for did in last.values()),
    )
    return OwnCount(
        replace(shown, computed=sum(did.prompt for did in last.values())),
        shown,
        any(did.is_lost for did in last.values()),
        sum(map(len, attempts.values())) - len(last),
    )
