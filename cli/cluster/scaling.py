"""The number of engines to run, chosen by how long new requests wait for a first token.

    one more    the shortest wait of all engines exceeds the target, for UP_AFTER_S
    one fewer   with one engine fewer the mean wait would be below SLACK of the target, and the
                remaining engines would be at most MOST_USED busy, for DOWN_AFTER_S

No engine is added or removed while another starts or ends, because the effect of the last change
must be seen first. The two conditions lie far apart, so that the number of engines does not
oscillate.

The module `wait` predicts waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

UP_AFTER_S = 5.0
DOWN_AFTER_S = 120.0
SLACK = 0.25  # maximum mean wait with one engine fewer, as a share of the target wait
MOST_USED = 0.75  # maximum use of the remaining engines, above which waits grow quickly

Change = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    """The operator's bounds on the number of engines, and the target wait in seconds."""

    least: int
    most: int
    target_wait_s: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """The present state of the engines."""

    waits: Sequence[float]  # predicted waits of ready engines, in seconds
    changing: int
    used: float = 0.0  # sum over ready engines; a fully used engine counts 1

    @property
    def engines(self) -> int:
        """The number of all engines."""
        return len(self.waits) + self.changing


@dataclass(frozen=True, slots=True)
class Since:
    """The times since which the cluster has been too slow or too large, or None."""

    slow: float | None = None
    idle: float | None = None


def decide(fleet: Fleet, since: Since, bounds: ScalingBounds, now: float) -> tuple[Change, Since]:
    """Return the change in the number of engines, and the next `since`. `now` is in seconds."""
    if fleet.engines < bounds.least:
        return 1, Since()
    if fleet.changing or not fleet.waits:
        return 0, Since()
    since = replace(
        since,
        slow=(since.slow or now) if _is_slow(fleet, bounds) else None,
        idle=(since.idle or now) if _is_idle(fleet, bounds) else None,
    )
    if since.slow is not None and now - since.slow >= UP_AFTER_S:
        return 1, Since()
    if since.idle is not None and now - since.idle >= DOWN_AFTER_S:
        return -1, Since()
    return 0, since


def _is_slow(fleet: Fleet, bounds: ScalingBounds) -> bool:
    return fleet.engines < bounds.most and min(fleet.waits) > bounds.target_wait_s


def _is_idle(fleet: Fleet, bounds: ScalingBounds) -> bool:
    if fleet.engines <= bounds.least or fleet.engines <= 1:
        return False
    others = fleet.engines - 1
    if fleet.used > MOST_USED * others:
        return False
    return sum(fleet.waits) / others < SLACK * bounds.target_wait_s
