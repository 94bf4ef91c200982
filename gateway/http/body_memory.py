"""The bytes of bodies held in memory at once, limited for each tenant and for all tenants.

A request reserves memory for its body before it reads the body. The request gives the memory back
when the engine has the prompt. While too few bytes are free, a request waits, for `body_wait_s` at
most. Tenants take turns, and a tenant's requests are served in order of arrival. Large bodies leave
an eighth of all bytes to small bodies. A small request therefore never waits for other tenants'
large requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.config import Bounds
from gateway.errors import GatewayError, TooManyRequests, Unavailable

# maximum bytes of a small body; the web server reads as many bytes ahead in any case
SMALL = 64 << 10
OPERATOR = ""  # the owner of the admin routes' bodies; no tenant's id is empty
_RETRY_S = 2.0


@dataclass(eq=False, slots=True)
class _Waiter:
    tenant_id: str
    size: int
    is_large: bool
    granted: asyncio.Future[None] = field(default_factory=asyncio.Future)

    @property
    def is_granted(self) -> bool:
        """True if the waiter's bytes are reserved, even if the waiter's task has not run since."""
        return self.granted.done() and not self.granted.cancelled()


class BodyMemory:
    """The bytes of request bodies that this process holds in memory. Used in one event loop."""

    def __init__(self, bounds: Bounds) -> None:
        self._most = bounds.max_all_body_bytes
        self._most_of_one = bounds.max_tenant_body_bytes
        self._wait_s = bounds.body_wait_s
        self._held: Counter[str] = Counter()
        # waiters by tenant, in the order of the tenants' next turns
        self._waiting: dict[str, deque[_Waiter]] = {}

    def __len__(self) -> int:
        return self._held.total()

    @contextmanager
    def lease(self, tenant_id: str) -> Iterator[BodyLease]:
        """Open an empty lease of body memory for one request. Give all bytes back at the end."""
        lease = BodyLease(self, tenant_id)
        try:
            yield lease
        finally:
            lease.release()

    async def take(self, tenant_id: str, size: int, *, is_large: bool) -> None:
        """Reserve `size` bytes more; raise TooManyRequests or Unavailable if there is no room."""
        waiter = _Waiter(tenant_id, size, is_large)
        self._waiting.setdefault(tenant_id, deque()).append(waiter)
        self._grant()
        if waiter.is_granted:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await waiter.granted
        except TimeoutError:
            if not (waiter.is_granted or self._fits_after_all(waiter)):
                raise self._refusal(waiter) from None
        except asyncio.CancelledError:
            if waiter.is_granted:
                self.give_back(tenant_id, size)
            raise
        finally:
            self._leave(waiter)

    def give_back(self, tenant_id: str, size: int) -> None:
        """Give back reserved bytes."""
        self._held[tenant_id] -= size
        if not self._held[tenant_id]:
            del self._held[tenant_id]
        self._grant()

    def _fits_after_all(self, waiter: _Waiter) -> bool:
        """Grant a waiter's bytes although its wait is over, if the bytes fit now.

        They may fit because the waiters before it have just given up.
        """
        waiter.granted = asyncio.Future()
        self._grant()
        return waiter.is_granted

    def _grant(self) -> None:
        while (waiter := self._next()) is not None:
            queue = self._waiting.pop(waiter.tenant_id)
            queue.remove(waiter)
            if queue:
                # the tenant's next turn comes after the other tenants' turns
                self._waiting[waiter.tenant_id] = queue
            self._held[waiter.tenant_id] += waiter.size
            waiter.granted.set_result(None)

    def _next(self) -> _Waiter | None:
        """Find the next waiter whose bytes fit. After one that does not fit, skip large waiters.

        Skips a waiter whose wait is over, since it stays in the queue until its task runs.
        """
        is_held_up = False
        for queue in self._waiting.values():
            waiter = next((one for one in queue if not one.granted.done()), None)
            if waiter is None or not self._fits_own(waiter) or (is_held_up and waiter.is_large):
                continue
            if self._fits_all(waiter):
                return waiter
            is_held_up = True
        return None

    def _fits_own(self, waiter: _Waiter) -> bool:
        return self._held[waiter.tenant_id] + waiter.size <= self._most_of_one

    def _fits_all(self, waiter: _Waiter) -> bool:
        room = self._most - self._most // 8 if waiter.is_large else self._most
        return self._held.total() + waiter.size <= room

    def _leave(self, waiter: _Waiter) -> None:
        queue = self._waiting.get(waiter.tenant_id, deque())
        if waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[waiter.tenant_id]
            self._grant()

    def _refusal(self, waiter: _Waiter) -> GatewayError:
        if not self._fits_own(waiter):
            return TooManyRequests(
                f"a tenant may have {self._most_of_one} bytes of bodies taken in at once",
                code="too_many_body_bytes",
                retry_after_s=_RETRY_S,
            )
        return Unavailable(
            "the gateway has as many bodies in memory as it may", retry_after_s=_RETRY_S
        )


class BodyLease:
    """The body memory that one request has reserved."""

    def __init__(self, memory: BodyMemory, tenant_id: str) -> None:
        self._memory = memory
        self._tenant_id = tenant_id
        self.size = 0

    async def grow(self, size: int) -> None:
        """Reserve up to `size` bytes in all; raise the errors of `BodyMemory.take`."""
        if size > self.size:
            more = size - self.size
            await self._memory.take(self._tenant_id, more, is_large=size > SMALL)
            self.size += more

    def shrink(self, size: int) -> None:
        """Give back the reserved bytes beyond `size`."""
        if size < self.size:
            less, self.size = self.size - size, size
            self._memory.give_back(self._tenant_id, less)

    def release(self) -> None:
        """Give back all reserved bytes. Repeated calls do nothing."""
        self.shrink(0)
