"""How long masks take, and how long steps wait for them: constraints and their maker, timed.

Knows: seconds. Does not know: what masks are made of, or who is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.record import p50_and_p99
from engine.errors import EngineError
from engine.link.messages import SamplingParams
from engine.scheduling.token_constraint import (
    Bitmask,
    ConstraintOf,
    Making,
    MaskMaker,
    TokenConstraint,
)


@dataclass
class MaskTimes:
    """Seconds for each mask, and for each step with masks."""

    made: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Begin anew."""
        self.made.clear()
        self.waited.clear()

    def told(self) -> dict[str, float]:
        """Percentiles in milliseconds, of what there is."""
        parts = {"mask": self.made, "wait": self.waited}
        return {
            f"{name}_{percentile}": value
            for name, seconds in parts.items()
            if seconds
            for percentile, value in p50_and_p99(seconds).items()
        }

    def constraint_of(self, inner: ConstraintOf) -> ConstraintOf:
        """The same constraints, timed."""

        def timed(sampling: SamplingParams, flow: str) -> TokenConstraint | None:
            constraint = inner(sampling, flow)
            return None if constraint is None else _TimedConstraint(constraint, flow, self.made)

        return timed

    def maker(self, inner: MaskMaker) -> MaskMaker:
        """The same maker, timed."""
        return _TimedMaker(inner, self.waited)


class _TimedConstraint(TokenConstraint):
    def __init__(self, inner: TokenConstraint, flow: str, made: list[float]) -> None:
        self.inner = inner
        self.flow = flow
        self.made = made

    @property
    def is_ready(self) -> bool:
        return self.inner.is_ready

    @property
    def has_mask(self) -> bool:
        return self.inner.has_mask

    @property
    def is_over(self) -> bool:
        return self.inner.is_over

    @property
    def error(self) -> EngineError | None:
        return self.inner.error

    def allowed(self) -> Bitmask:
        if self.inner.has_mask:
            return self.inner.allowed()
        began = time.perf_counter()
        mask = self.inner.allowed()
        self.made.append(time.perf_counter() - began)
        return mask

    def advance(self, token_id: int) -> None:
        self.inner.advance(token_id)


@dataclass(frozen=True, slots=True)
class _TimedMaker:
    inner: MaskMaker
    waited: list[float]

    def make(self, constraints: Iterable[TokenConstraint]) -> _TimedMaking:
        return _TimedMaking(self.inner.make(constraints), self.waited)


@dataclass(frozen=True, slots=True)
class _TimedMaking:
    inner: Making
    waited: list[float]

    def wait(self, seconds: float) -> None:
        began = time.perf_counter()
        self.inner.wait(seconds)
        self.waited.append(time.perf_counter() - began)
