"""The delay of a tenant's refusals: a few are answered at once, and more only slowly."""

import asyncio
from collections.abc import Callable

PER_S = 20.0  # number of a tenant's refusals that are answered at once, per second
BURST_S = 1.0  # burst of refusals answered at once after a pause, in seconds of the rate PER_S
LONGEST_S = 2.0
_MAX_TENANTS = 10_000


class RefusalThrottle:
    """A throttle of refusals for clients that retry at once after each refusal.

    A refused request is cheap, but not free. A tenant at its limits with many connections could
    keep the event loop busy with refusals alone. Each tenant therefore has a leaky bucket (GCRA).
    Up to a rate, refusals are answered at once, and beyond the rate one after the other. While a
    refusal waits, its connection is not read.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._full_until: dict[str, float] = {}

    def delay(self, tenant_id: str) -> float:
        """Count a refusal of the tenant; return the seconds to wait before answering it."""
        now = self._clock()
        if len(self._full_until) >= _MAX_TENANTS:
            self._full_until = {t: until for t, until in self._full_until.items() if until > now}
        latest = now + BURST_S + LONGEST_S
        until = min(max(self._full_until.get(tenant_id, now), now) + 1 / PER_S, latest)
        self._full_until[tenant_id] = until
        return max(0.0, until - now - BURST_S)

    async def wait(self, tenant_id: str) -> None:
        """Wait until the tenant's refusal may be answered."""
        delay = self.delay(tenant_id)
        if delay:
            await asyncio.sleep(delay)
