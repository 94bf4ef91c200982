"""The timing test: can an attacker tell from its first token's time that a victim asked the same?

    a trial      hit:   the victim asks p, the attacker asks p
                 miss:  the victim asks q, the attacker asks r

Every prompt is new. A trial's hit and miss follow each other directly, in random order, so that
other load affects both; and the same work for the victim precedes each. The control is the same
test with one tenant as victim and attacker.

Knows: trials. Does not know: clocks (`stopwatch`), statistics or what is good enough (`verdict`).
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from cli.isolation.asking import Asker, Prompt
from cli.isolation.cast import Member
from cli.isolation.cells import ENTRY_POINTS
from cli.isolation.statistics import Separation, separation
from cli.isolation.stopwatch import Stopwatch

_IDS = next(entry for entry in ENTRY_POINTS if entry.kind == "ids" and entry.stream)
_WARM_UP = 5
_CONTROL_SHARE, _MIN_CONTROL = 5, 100
_VOCABULARY = 1000  # token ids from which prompts are drawn


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What the timing test measured."""

    prompt_tokens: int
    across: Separation  # attacker and victim are two tenants
    control: Separation  # they are one


@dataclass
class _Times:
    hits: list[float] = field(default_factory=list)
    misses: list[float] = field(default_factory=list)

    def separation(self, seed: int) -> Separation:
        return separation(np.array(self.hits), np.array(self.misses), seed)


@dataclass
class _Prompts:
    """Draws prompts of ids that the model's tokenizer really gives."""

    ids: list[int]
    length: int
    random: random.Random

    def draw(self) -> Prompt:
        return Prompt("", self.random.choices(self.ids, k=self.length))


class TimingTest:
    """Times one pair of tenants. The other load of the server should be steady."""

    def __init__(self, asker: Asker, victim: Member, attacker: Member, length: int) -> None:
        self._asker = asker
        self._victim = victim
        self._attacker = attacker
        self._length = length
        self._random = random.Random(secrets.randbits(64))

    async def run(self, samples: int, advance: Callable[[], None]) -> Timing:
        """Take `samples` of each class across tenants; for the control a fifth, but at least 100.

        Blocks the event loop, except for a moment between trials.
        """
        sample_of_ids = await self._asker.fresh_prompt(self._victim.key, _VOCABULARY)
        prompts = _Prompts(sample_of_ids.ids, self._length, self._random)
        every = max(1, samples // max(samples // _CONTROL_SHARE, min(_MIN_CONTROL, samples)))
        across, control = _Times(), _Times()
        url = self._asker.url
        headers = [self._asker.headers(who.key) for who in (self._victim, self._attacker)]
        with Stopwatch(url, headers[0]) as victim, Stopwatch(url, headers[1]) as spy:
            for _ in range(_WARM_UP):
                self._trial(prompts, victim, spy, _Times())
                self._trial(prompts, victim, victim, _Times())
            for number in range(samples):
                self._trial(prompts, victim, spy, across)
                if number % every == 0:
                    self._trial(prompts, victim, victim, control)
                advance()
                await asyncio.sleep(0)  # where Ctrl-C is heard
        seed = self._random.getrandbits(32)
        return Timing(
            prompt_tokens=self._length,
            across=across.separation(seed),
            control=control.separation(seed),
        )

    def _trial(self, prompts: _Prompts, victim: Stopwatch, spy: Stopwatch, times: _Times) -> None:
        classes = [True, False]
        self._random.shuffle(classes)
        for is_hit in classes:
            asked = prompts.draw()
            self._time(victim, asked)
            taken = self._time(spy, asked if is_hit else prompts.draw())
            (times.hits if is_hit else times.misses).append(taken)

    def _time(self, watch: Stopwatch, prompt: Prompt) -> float:
        return watch.first_token_s(_IDS, self._asker.body(_IDS, prompt))
