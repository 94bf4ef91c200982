"""Prefill times of prompts, which a test sets instead of measuring them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConstantRate:
    """Prefill times of `per_token` seconds for each token in any context. None: not measured."""

    per_token: float | None

    @property
    def is_measured(self) -> bool:
        return self.per_token is not None

    def prefill(self, start: int, end: int) -> float:
        return (end - start) * (self.per_token or 0.0)


NOTHING_MEASURED = ConstantRate(None)
