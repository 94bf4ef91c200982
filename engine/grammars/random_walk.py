"""A random walk through a compiled grammar, which tests whether its masks can be made in time."""

from __future__ import annotations

import random
import time

from llguidance import LLMatcher


def walk_at_random(matcher: LLMatcher, num_steps: int) -> float:
    """Follow at most `num_steps` allowed tokens. Return the processor seconds of the slowest mask.

    The walk also ends if the grammar's text is complete, or if the matcher has an error.
    """
    chance, longest = random.Random(0), 0.0
    for _ in range(num_steps):
        began = time.thread_time()
        mask = matcher.compute_bitmask()
        longest = max(longest, time.thread_time() - began)
        token = _some_token(mask, chance)
        if token is None or matcher.is_stopped():
            break
        matcher.consume_token(token)
    return longest


def _some_token(mask: bytes, chance: random.Random) -> int | None:
    for begin in (chance.randrange(len(mask)), 0):
        rest = mask[begin:].lstrip(b"\0")
        if rest:
            return 8 * (len(mask) - len(rest)) + rest[0].bit_length() - 1
    return None
