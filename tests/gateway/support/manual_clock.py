"""A clock that does not move until a test moves it."""

from __future__ import annotations


class ManualClock:
    """A clock that returns its time when called, and moves only by `advance`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
