"""The trials of the timing test, each a hit and a miss that follow each other."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from cli.isolation.timing.separation import Separation, separation
from cli.isolation.timing.timed_requests import Timed, TimedRequests
from cli.isolation.timing.trial_prompts import TrialPrompts

_WARM_UP = 5
_FEWEST = 20
_CONTROL_SHARE, _MIN_CONTROL = 5, 100


class TimingFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the timing test for one timed part of an answer."""

    prompt_tokens: int
    across: Separation  # result of trials in which attacker and victim are two tenants
    control: Separation  # result of trials in which attacker and victim are one tenant


class Trials(NamedTuple):
    """Trials, each a hit and a miss, and the number of tokens of each answer."""

    across: list[tuple[Timed, Timed]]  # trials in which victim and attacker are two tenants
    control: list[tuple[Timed, Timed]]
    answered: int

    def finding(self, length: int, part: Callable[[Timed], float]) -> TimingFinding:
        """Compare hits and misses by one timed part of their answers."""
        return TimingFinding(
            prompt_tokens=length,
            across=_separation(self.across, part),
            control=_separation(self.control, part),
        )


async def taken(
    prompts: TrialPrompts,
    own: TimedRequests,
    others: TimedRequests,
    answered: int,
    samples: int,
    until: float,
    advance: Callable[[int], None],
) -> Trials | None:
    """Take `samples` trials, or as many as end before `until`.

    Returns None if these are too few to judge. Answers have `answered` tokens, but a single token
    if the server drafts nothing.
    """
    every = max(1, samples // max(samples // _CONTROL_SHARE, min(_MIN_CONTROL, samples)))
    across, control = list[tuple[Timed, Timed]](), list[tuple[Timed, Timed]]()

    async def trial(spy: TimedRequests) -> tuple[Timed, Timed]:
        await prompts.prepare()
        times = {}
        for is_hit in random.sample((True, False), k=2):
            asked = prompts.new()
            own.timed(asked.prompt, answered, asked.own_fields)
            again = asked if is_hit else prompts.new()
            fields = again.own_fields if spy is own else again.other_fields
            times[is_hit] = spy.timed(again.prompt, answered, fields)
        return times[True], times[False]

    for _ in range(_WARM_UP):
        if time.monotonic() >= until:
            return None
        await trial(others)
        control.append(await trial(own))
    if not any(hit.drafted for hit, _ in control):
        answered = 1
    control.clear()
    for number in range(samples):
        if time.monotonic() >= until:
            break
        across.append(await trial(others))
        if number % every == 0:
            control.append(await trial(own))
        advance(1)
        await asyncio.sleep(0)  # Ctrl-C can cancel the test here
    return None if len(across) < min(_FEWEST, samples) else Trials(across, control, answered)


def _separation(trials: list[tuple[Timed, Timed]], part: Callable[[Timed], float]) -> Separation:
    hits, misses = np.array([[part(hit), part(miss)] for hit, miss in trials]).T
    return separation(hits, misses, random.getrandbits(32))
