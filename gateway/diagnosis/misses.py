"""The latest cache misses of each tenant whose page is open.

Comparing prompts takes time. Prompts are compared only for requests that ask why they missed, and
for tenants whose page is open. A page is open if it asked for its data within WATCHED_S.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gateway.diagnosis.cache_miss import CacheMiss, Reason

WATCHED_S = 60.0
MOST = 50
MOST_TENANTS = 1000
_NOTHING_LOST: tuple[Reason, ...] = ("none", "never_seen", "below_minimum", "unavailable")


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A request that missed cached tokens.

    `ms` is the milliseconds to compute the tokens again, or None if unknown.
    """

    at: float  # seconds since the epoch
    request_id: str
    reason: Reason
    tokens: int
    ms: float | None
    part: str | None
    advice: str | None


@dataclass(slots=True)
class _Seen:
    until: float
    misses: deque[Miss] = field(default_factory=lambda: deque(maxlen=MOST))


class LastMisses:
    """The latest misses by tenant. Thread-safe. `clock` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # by tenant; the tenant that asked most recently is at the end
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def watch(self, tenant_id: str) -> list[Miss]:
        """List the tenant's misses, newest first. Record its next misses for WATCHED_S seconds."""
        seen = self._seen.setdefault(tenant_id, _Seen(0.0))
        seen.until = self._clock() + WATCHED_S
        self._seen.move_to_end(tenant_id)
        while len(self._seen) > MOST_TENANTS:
            self._seen.popitem(last=False)
        return list(reversed(seen.misses))

    def is_watched(self, tenant_id: str) -> bool:
        """Return whether the tenant watches its misses."""
        seen = self._seen.get(tenant_id)
        return seen is not None and seen.until > self._clock()

    def add(self, tenant_id: str, request_id: str, miss: CacheMiss) -> None:
        """Record a miss if tokens were lost and the tenant watches its misses."""
        seen = self._seen.get(tenant_id)
        if seen is None or miss.reason in _NOTHING_LOST:
            return
        seen.misses.append(
            Miss(
                at=self._clock(),
                request_id=request_id,
                reason=miss.reason,
                tokens=miss.lost_tokens or 0,
                ms=miss.lost_ms,
                part=miss.part,
                advice=miss.advice,
            )
        )
