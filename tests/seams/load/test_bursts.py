"""Bursts of prompts to a mixture of experts, with step times predicted from other work.

The real scheduling core runs with a device that only takes time, as in `test_flood.py`.
"""

from __future__ import annotations

import random

from engine.scheduling.step_builder import StepLimits
from tests.doubles.modelled.mixture import MixtureModel
from tests.doubles.modelled.replay import Replay

WHOLE = 8192
MAX_STEP_S = 0.06
PROMPT, ANSWER = 1024, 128
CROWD = 128


def first_tokens(replay: Replay, asked: list[tuple[int, int]]) -> list[float]:
    """Send concurrent requests of these sizes, and return their sorted times to first token."""
    streams = [replay.stream("tenant", prompt, answer) for prompt, answer in asked]
    for stream in streams:
        stream.start()
    replay.run(lambda: all(stream.asked_at for stream in streams))
    for stream in streams:
        stream.is_asking = False
    replay.run(lambda: all(stream.finished for stream in streams))
    return sorted(first for stream in streams for first in stream.firsts)


def after_other_work(max_step_s: float | None, seed: int) -> list[float]:
    """Return seconds to first token in a burst, after 256 different answers and 32 equal ones."""
    replay = Replay(StepLimits(WHOLE, 256, max_step_s), model=MixtureModel())
    lengths = random.Random(seed)
    mixed = [(lengths.randint(100, 1024), lengths.randint(50, 512)) for _ in range(256)]
    for asked in (mixed, [(PROMPT, ANSWER)] * 32):
        first_tokens(replay, asked)
    return first_tokens(replay, [(PROMPT, ANSWER)] * CROWD)


def test_a_burst_takes_not_much_longer_than_in_the_largest_steps() -> None:
    """Step times learnt from decodes alone must not make small steps of prompts seem free."""
    bounded, whole = (after_other_work(most, seed=7) for most in (MAX_STEP_S, None))
    assert len(bounded) == CROWD
    of_nearly_all = CROWD * 9 // 10
    assert bounded[of_nearly_all] < 1.5 * whole[of_nearly_all]
