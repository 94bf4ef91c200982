"""Running requests are cut off when their key ends, and other requests are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from gateway.auth.keyring import IDENTITY_TTL_S, OUTAGE_TTL_S, IssuedKey, Keyring
from gateway.auth.running_requests import CHECK_EVERY_S, GROUP_KNOWN_S, RunningRequests
from gateway.errors import Forbidden, GatewayError, Unauthenticated, Unavailable
from gateway.http.request_head import RunningRequest
from gateway.state.records import ApiKey, Tenant
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.put_record import put

PEPPER = b"pepper".ljust(32, b".")
ACME = Tenant(id="tn_acme", name="acme", created_at=1.0)
OTHER = Tenant(id="tn_other", name="other", created_at=1.0)


class AwayStore(MemoryStore):
    """A store that raises an error for key lookups while it is unreachable."""

    away = False

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        if self.away:
            raise Unavailable("away", code="state_unavailable", retry_after_s=1.0)
        return await super().find_by_digest(digest)


@dataclass
class House:
    """Keys in a store in memory, clocks that tests set, and requests that run until they are cut
    off.
    """

    store: AwayStore
    clock: ManualClock
    monotonic: ManualClock
    keyring: Keyring
    running: RunningRequests
    tasks: list[asyncio.Task[bool]] = field(default_factory=list)

    async def enter(self, key: IssuedKey) -> RunningRequest:
        """Admit a request, which then runs."""
        await self.keyring.identify(key.secret)
        task = asyncio.create_task(asyncio.Event().wait())
        self.tasks.append(task)
        request = RunningRequest(task)
        self.running.add(key.record.digest, request)
        return request

    async def cut_off(self) -> list[int]:
        """Check the keys of running requests; return the numbers of the requests that are cut
        off.
        """
        await self.running.check()
        await asyncio.sleep(0)
        return [place for place, task in enumerate(self.tasks) if task.cancelled()]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    store, clock, monotonic = AwayStore(), ManualClock(), ManualClock(50.0)
    store.tenants |= {ACME.id: ACME, OTHER.id: OTHER}
    keyring = Keyring(store, PEPPER, clock, monotonic=monotonic)
    house = House(store, clock, monotonic, keyring, RunningRequests(keyring))
    yield house
    for task in house.tasks:
        task.cancel()


async def revoked(house: House, key: IssuedKey) -> None:
    await house.keyring.revoke(key.record.id)


async def rotated(house: House, key: IssuedKey) -> None:
    await house.keyring.rotate(key.record.id, overlap_s=0)


async def expired(house: House, key: IssuedKey) -> None:
    await house.keyring.rotate(key.record.id, overlap_s=10)
    assert await house.cut_off() == [], "the control: both keys are good during the overlap"
    house.clock.advance(10)


async def disabled(house: House, _: IssuedKey) -> None:
    await put(house.store, replace(ACME, disabled=True))
    house.keyring.forget(ACME.id)


async def deleted(house: House, _: IssuedKey) -> None:
    await house.store.delete(Tenant, ACME.id)
    house.keyring.forget(ACME.id)


Ending = Callable[[House, IssuedKey], Awaitable[None]]


@pytest.mark.parametrize(
    ("end", "error", "others_of_the_tenant"),
    [
        (revoked, Unauthenticated, False),
        (rotated, Unauthenticated, False),
        (expired, Unauthenticated, False),
        (disabled, Forbidden, True),
        (deleted, Unauthenticated, True),
    ],
)
async def test_what_ends_a_key_ends_its_requests(
    house: House, end: Ending, error: type[GatewayError], others_of_the_tenant: bool
) -> None:
    doomed, sibling = [await house.keyring.issue(ACME.id) for _ in range(2)]
    stranger = await house.keyring.issue(OTHER.id)
    first = await house.enter(doomed)
    await house.enter(doomed)
    await house.enter(sibling)
    await house.enter(stranger)
    assert await house.cut_off() == [], "the control: nothing has ended yet"
    await end(house, doomed)
    assert await house.cut_off() == ([0, 1, 2] if others_of_the_tenant else [0, 1])
    assert type(first.error) is error
    with pytest.raises(error):  # with the same error as a new request
        await house.keyring.identify(doomed.secret)


async def test_a_change_that_nobody_was_told_of_is_seen_within_five_seconds(house: House) -> None:
    key = await house.keyring.issue(ACME.id)
    await house.enter(key)
    await Keyring(house.store, PEPPER, house.clock).revoke(key.record.id)
    assert await house.cut_off() == [], "it is remembered"
    house.monotonic.advance(IDENTITY_TTL_S)
    assert await house.cut_off() == [0]
    assert IDENTITY_TTL_S + CHECK_EVERY_S < 5.0


async def test_what_was_let_in_to_a_group_ends_when_its_tenant_leaves_it(house: House) -> None:
    keys = [await house.keyring.issue(one.id) for one in (ACME, ACME, OTHER)]
    requests = [await house.enter(key) for key in keys]
    house.store.tenants[ACME.id] = replace(ACME, group_id="gr_1", weight=2.0)
    house.keyring.forget(ACME.id)
    assert await house.cut_off() == [], "the control: it has joined one, and left none"
    requests[0].group_id = "gr_1"
    assert await house.cut_off() == []
    house.store.tenants[ACME.id] = replace(ACME, group_id="gr_2")
    house.monotonic.advance(IDENTITY_TTL_S)
    assert await house.cut_off() == [0]
    assert isinstance(requests[0].error, Unavailable)
    assert requests[0].error.code == "group_left"
    assert GROUP_KNOWN_S > IDENTITY_TTL_S + CHECK_EVERY_S


async def test_while_the_state_is_away_requests_go_on_for_as_long_as_new_ones_are_let_in(
    house: House,
) -> None:
    key = await house.keyring.issue(ACME.id)
    request = await house.enter(key)
    house.store.away = True
    house.monotonic.advance(OUTAGE_TTL_S - 0.1)
    assert await house.cut_off() == []
    house.monotonic.advance(0.1)
    assert await house.cut_off() == [0]
    assert isinstance(request.error, Unavailable)
    assert request.error.code == "state_unavailable"


async def test_a_state_that_comes_back_in_time_ends_nothing(house: House) -> None:
    await house.enter(await house.keyring.issue(ACME.id))
    for away in (True, False, True):
        house.store.away = away
        house.monotonic.advance(OUTAGE_TTL_S * 0.6)
        assert await house.cut_off() == []


async def test_a_key_is_looked_up_once_in_its_time_however_many_requests_it_has(
    house: House,
) -> None:
    key = await house.keyring.issue(ACME.id)
    for _ in range(100):
        await house.enter(key)
    for _ in range(10):
        await house.cut_off()
    assert house.store.lookups == 1
    house.monotonic.advance(IDENTITY_TTL_S)
    await house.cut_off()
    assert house.store.lookups == 2


async def test_a_request_that_is_over_is_forgotten(house: House) -> None:
    key = await house.keyring.issue(ACME.id)
    over, going_on = await house.enter(key), await house.enter(key)
    over.at_end.close()
    assert len(house.running) == 1
    await revoked(house, key)
    assert await house.cut_off() == [1]
    going_on.at_end.close()
    assert len(house.running) == 0


async def test_a_request_that_a_shutdown_cuts_off_keeps_that_error(house: House) -> None:
    key = await house.keyring.issue(ACME.id)
    request = await house.enter(key)
    house.tasks[0].cancel()
    await revoked(house, key)
    assert await house.cut_off() == [0]
    assert request.error.code == "shutting_down"


async def test_they_are_checked_regularly(house: House) -> None:
    key = await house.keyring.issue(ACME.id)
    await house.enter(key)
    async with house.running.checked():
        await revoked(house, key)
        await asyncio.wait(house.tasks, timeout=60)
    assert house.tasks[0].cancelled()
