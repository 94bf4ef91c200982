"""The eviction test: can an attacker count a victim's tokens by its own evicted KV blocks?

    a trial      the attacker fills the device, or its own part of the device, with prompts (prime)
                 the victim sends a prompt of 0, 160, 320, 640 or 1280 new tokens (the level); in
                 half of the trials the victim marks the prompt
                 the attacker sends its prompts again, newest first, and reads from the answers how
                 many tokens are cached, and in which tiers (probe)

This prime-and-probe attack needs no clock. Levels come in random order. The result of all trials is
the mutual information of level and reading. The information is 0 bits if all readings are equal,
and 2.3 bits if each level has its own reading. The control is the same test with one tenant as
attacker and victim. This tenant's tokens must evict its own blocks.
"""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cli.isolation.cases import IDS, TierCase
from cli.isolation.fixtures import TenantFixture, flush
from cli.isolation.server import ServerUnderTest
from cli.progress import progress_lines

LEVELS = (0, 160, 320, 640, 1280)  # numbers of new tokens of the victim
_PIECES = 8
_PLAIN: Mapping[str, str] = {"cache_salt": "victim"}
_MARKED: Mapping[str, str] = {**_PLAIN, "prompt_cache_retention": "24h"}
# how often the levels are shuffled to measure chance, and the seed of random numbers
_SHUFFLES, _SEED = 500, 1

Observation = tuple[int, ...]
"""The numbers of the attacker's cached tokens: in total, and in each tier."""


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """The information that the attacker's readings give about the length of the victim's prompt."""

    trials: int
    readings: int
    bits: float  # mutual information of level and reading per trial, corrected for bias
    chance: float  # probability that chance alone gives as many bits or more


class EvictionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the eviction test."""

    filled_tokens: int
    across: Learnt  # result of trials in which attacker and victim are two tenants
    control: Learnt  # result of trials in which attacker and victim are one tenant


def learnt(trials: Sequence[tuple[int, Observation]]) -> Learnt:
    """Estimate the mutual information of prompt lengths and readings.

    It is the plug-in estimate minus that estimate's bias (Panzeri and Treves).
    """
    levels, readings = [level for level, _ in trials], [reading for _, reading in trials]
    found, shuffled, order = _information(levels, readings), list(levels), random.Random(_SEED)
    as_much = 0
    for _ in range(_SHUFFLES):
        order.shuffle(shuffled)
        as_much += _information(shuffled, readings) >= found - 1e-9
    kinds = (len(set(levels)) - 1) * (len(set(readings)) - 1)
    return Learnt(
        trials=len(trials),
        readings=len(set(readings)),
        bits=max(found - kinds / (2 * len(trials) * math.log(2)), 0.0),
        chance=as_much / _SHUFFLES,
    )


def _information(levels: Sequence[int], readings: Sequence[Observation]) -> float:
    both = Counter(zip(levels, readings, strict=True))
    return (
        _entropy(Counter(levels).values())
        + _entropy(Counter(readings).values())
        - _entropy(both.values())
    )


def _entropy(counts: Iterable[int]) -> float:
    numbers = list(counts)
    total = sum(numbers)
    return -sum(n / total * math.log2(n / total) for n in numbers)


class EvictionTest:
    """Trials of two temporary tenants.

    If tenants share the cache's capacity, other load on the server adds noise.
    """

    def __init__(
        self, server: ServerUnderTest, attacker: TenantFixture, victim: TenantFixture
    ) -> None:
        self._server = server
        self._attacker = attacker
        self._victim = victim
        self._filled = server.facts.tier_tokens[TierCase.DEVICE]

    async def run(self, repeats: int, until: float = math.inf) -> EvictionFinding | None:
        """Take `repeats` trials of each level: across tenants, with marks, and within one tenant.

        Returns None if the trials have not ended when `time.monotonic()` reaches `until`.
        """
        try:
            async with asyncio.timeout(None if math.isinf(until) else until - time.monotonic()):
                return await self._all(repeats)
        except TimeoutError:
            return None

    async def _all(self, repeats: int) -> EvictionFinding:
        trials: dict[TenantFixture, list[tuple[int, Observation]]] = {
            self._victim: [],
            self._attacker: [],
        }
        # A marked prompt must evict no more of the attacker's blocks than other prompts.
        kinds = [(self._victim, _PLAIN), (self._victim, _MARKED), (self._attacker, _PLAIN)]
        wanted = [(level, *kind) for level in LEVELS for kind in kinds] * repeats
        random.shuffle(wanted)
        with progress_lines("eviction", len(wanted)) as advance:
            for level, victim, fields in wanted:
                trials[victim].append((level, await self._trial(victim, level, fields)))
                advance(1)
        across, control = map(learnt, trials.values())
        return EvictionFinding(filled_tokens=self._filled, across=across, control=control)

    async def _trial(
        self, victim: TenantFixture, level: int, fields: Mapping[str, str]
    ) -> Observation:
        server, total = self._server, Counter[str]()
        await flush(server, self._attacker, self._victim)
        primed = server.new_prompts(self._filled, self._filled // _PIECES)
        for prompt in primed:
            await server.ask(self._attacker.key, IDS, prompt)
        for prompt in server.new_prompts(level, level):
            await server.ask(victim.key, IDS, prompt, fields)
        await server.copied()
        for prompt in reversed(primed):
            reading = await server.ask(self._attacker.key, IDS, prompt)
            total.update({"cached": reading.cached_tokens, **reading.tiers})
        return tuple(total[name] for name in ("cached", "device", "host", "disk"))
