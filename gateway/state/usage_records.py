"""Counters of usage, by day and key."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of usage. None means that a counter was not measured, which is not 0.

    `cached_tokens` counts the prompt tokens that the cache saved, once for each prompt.
    `computed_tokens` counts computed prompt tokens, for each choice. `cache_read_tokens` counts the
    tokens within `cache_written_tokens` that a request has found since, on any day.
    """

    requests: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    # milliseconds for which the accelerator worked; None: not measured
    engine_ms: float | None = None
    # milliseconds of prefill that the cache saved, by the measured rates; None: not measured
    saved_ms: float | None = None
    cache_written_tokens: int = 0
    cache_read_tokens: int = 0

    def plus(self, other: Counters) -> Counters:
        """Return the sums of both counters."""
        total = asdict(self)
        for name, more in other.known().items():
            total[name] = (total[name] or 0) + more
        return Counters(**total)

    def known(self) -> dict[str, Any]:
        """Return the measured counters by name."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None}


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one key of a tenant on one day, `YYYY-MM-DD` in UTC."""

    tenant_id: str
    key_id: str
    day: str
    counters: Counters
