"""Permits for tests that check only a limiter's limits."""

from __future__ import annotations

import time

from gateway.config import Bounds
from gateway.http.body_memory import BodyMemory
from gateway.limits.limiter import Limiter
from gateway.limits.open_streams import OpenStreams
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.requests.permits import Permits
from gateway.tenant_limits import Prices


def some_permits(limiter: Limiter, prices: Prices, *, streams: int = 100) -> Permits:
    """Return permits bounded by `limiter`, and by `streams` concurrent choices of a tenant."""
    bodies, throttle = BodyMemory(Bounds()), RefusalThrottle(time.monotonic)
    return Permits(limiter, prices, OpenStreams(streams), bodies, throttle)
