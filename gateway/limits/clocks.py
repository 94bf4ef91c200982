"""The two clocks of a limiter that is not Redis: one for rates and holds, one for the calendar.

Knows: how a `Moment` is read. Does not know: what is decided at it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.limits.account import Moment


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic` in seconds, the same for all processes of a machine; `wall` since the epoch."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __call__(self) -> Moment:
        """Now."""
        return Moment(int(self.monotonic() * 1_000_000), month_of(self.wall()))


def month_of(wall: float) -> int:
    """The calendar month (UTC) of a time since the epoch, counted since year 0."""
    day = datetime.fromtimestamp(wall, UTC)
    return day.year * 12 + day.month - 1
