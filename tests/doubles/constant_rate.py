"""The seconds that computing prompts takes, stated by a test instead of measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConstantRate:
    """A rate with the same seconds for each token in any context; None: not measured."""

    per_token: float | None

    @property
    def is_measured(self) -> bool:
        return self.per_token is not None

    def prefill(self, start: int, end: int) -> float:
        return (end - start) * (self.per_token or 0.0)


NOTHING_MEASURED = ConstantRate(None)
