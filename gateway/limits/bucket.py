"""GCRA in whole numbers: the leaky bucket that fills by what is used and drains at the rate.

This is the generic cell rate algorithm in its second form (ITU-T I.371, "continuous-state leaky
bucket"): the theoretical arrival time of the first form is `at + level / rate`. A level can be
kept exactly, in Python and in Lua's doubles, which a time in fractions of a period cannot.

    level   in sixty-millionths of one: at `rate` a minute, `rate` of them drain each microsecond
    at      microseconds, when `level` was true; any clock that moves on

A clock that has jumped back starts anew from where it is: that gives no credit, and locks nobody
out for as long as the jump. One that has jumped ahead drains the bucket once, a burst at most.

`scripts` has the same in Lua. Knows: one bucket. Does not know: whose it is or what it counts.
"""

from __future__ import annotations

import msgspec

ONE = 60_000_000  # of a level, what a single request or token is


class Bucket(msgspec.Struct, frozen=True):
    """How full a bucket is, and when it was."""

    level: int = 0
    at: int = 0

    def drained(self, rate: int, now: int) -> Bucket:
        """The bucket at `now`."""
        elapsed = max(0, now - self.at)
        return Bucket(max(0, self.level - elapsed * rate), now)

    def filled(self, amount: int, capacity: int) -> Bucket:
        """The bucket with `amount` more in it, at most full."""
        return Bucket(min(self.level + amount * ONE, max(capacity, self.level)), self.at)


def capacity(rate: int, burst_s: float | None) -> int:
    """How much a bucket holds: the rate of `burst_s` seconds (None: a minute), at least one."""
    return max(ONE, rate * round((60.0 if burst_s is None else burst_s) * 1_000_000))


def wait_s(level: int, rate: int) -> float:
    """Seconds until so much has drained."""
    return max(0, level) / rate / 1_000_000
