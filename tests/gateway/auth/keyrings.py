"""Keyrings over stores in memory. Some stores are unreachable, slow, or have lost their data."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from gateway.auth.keyring import (
    IDENTITY_TTL_S,
    Keyring,
)
from gateway.errors import (
    GatewayError,
    StateLost,
    Unauthenticated,
    Unavailable,
)
from gateway.state.records import ApiKey, Tenant
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock

PEPPER = b"pepper".ljust(32, b".")
ACME = Tenant(id="tn_acme", name="acme", created_at=1.0, weight=2.0)


class AwayStore(MemoryStore):
    """A store that raises an error for key lookups while it is unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        if self.away:
            raise Unavailable("away", retry_after_s=1.0)
        return await super().find_by_digest(digest)


class LostStore(AwayStore):
    """A store whose state is lost once `lost` is set."""

    lost = False

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        if self.lost:
            raise StateLost("state_damaged")
        return await super().find_by_digest(digest)


class PausingStore(MemoryStore):
    """A store that finds a key at once, but returns it only after `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.found = asyncio.Event()
        self.go = asyncio.Event()

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        answer = await super().find_by_digest(digest)
        self.found.set()
        await self.go.wait()
        return answer


class SlowStore(MemoryStore):
    """A store that answers at once for existing keys, and after `go` is set for others."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.go = asyncio.Event()

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        found = await super().find_by_digest(digest)
        if found is None:
            self.waiting += 1
            await self.go.wait()
            self.waiting -= 1
        return found


@dataclass
class Ring:
    """A keyring over a store in memory, with clocks that tests set. The tenant `acme` exists."""

    store: MemoryStore
    clock: ManualClock
    monotonic: ManualClock
    keyring: Keyring

    def forget_by_time(self) -> None:
        self.monotonic.advance(IDENTITY_TTL_S)


def a_ring(store: MemoryStore | None = None) -> Ring:
    store = store or MemoryStore()
    store.tenants[ACME.id] = ACME
    clock, monotonic = ManualClock(), ManualClock(50.0)
    return Ring(store, clock, monotonic, Keyring(store, PEPPER, clock, monotonic=monotonic))


async def refusal(keyring: Keyring, key: str) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await keyring.identify(key)
    return caught.value


async def opens(keyring: Keyring, key: str) -> bool:
    try:
        await keyring.identify(key)
    except Unauthenticated:
        return False
    return True
