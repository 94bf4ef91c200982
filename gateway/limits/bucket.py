"""A leaky bucket in whole numbers: filled by what is used, drained at the rate (GCRA).

This is the generic cell rate algorithm in its second form (ITU-T I.371, "continuous-state leaky
bucket"): the theoretical arrival time of the first form is `at + level / rate`. A level can be
kept exactly, in Python and in Lua's doubles; a time in fractions of a period cannot.

    level   in sixty-millionths of a request or token: at `rate` a minute, `rate` of these drain
            each microsecond
    at      when `level` was true, in microseconds of any monotonic clock

If the clock jumps back, time counts from there on: nobody gets credit or is locked out for as
long as the jump. If it jumps ahead, the bucket drains once, which admits at most one burst.

`scripts` has the same in Lua. Knows: one bucket. Does not know: whose it is or what it counts.
"""

from __future__ import annotations

import msgspec

ONE = 60_000_000  # the level of a single request or token


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
    """The level of a full bucket: `burst_s` seconds at the rate (None: a minute), at least ONE."""
    return max(ONE, rate * round((60.0 if burst_s is None else burst_s) * 1_000_000))


def wait_s(level: int, rate: int) -> float:
    """Seconds until `level` has drained."""
    return max(0, level) / rate / 1_000_000
