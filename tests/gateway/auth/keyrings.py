"""Keyrings over plain stores, some of which are away, slow or lost."""

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
    """Refuses to find keys while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        if self.away:
            raise Unavailable("away", retry_after_s=1.0)
        return await super().find_by_digest(digest)


class LostStore(AwayStore):
    """Has lost its state when `lost` says so."""

    lost = False

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        if self.lost:
            raise StateLost("state_damaged")
        return await super().find_by_digest(digest)


class PausingStore(MemoryStore):
    """Finds a key at once, but answers only when the test says `go`."""

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
    """Answers of keys that there are at once, and of others when the test says `go`."""

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
    """A keyring over the plain store, its clocks in hand. The tenant `acme` exists."""

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
