"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Call it for the time; `advance` moves it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
