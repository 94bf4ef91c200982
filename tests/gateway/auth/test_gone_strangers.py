"""Lookups of made-up keys stop once their clients have disconnected."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.auth.keyring import Keyring, key_of
from gateway.http.protocol.connection import BoundedConnection
from gateway.http.request_head import RequestHead, tell_owner
from gateway.state.records import ApiKey, Tenant
from tests.doubles.gateway.wire import Wire
from tests.gateway.auth.test_auth import ACME, PEPPER, guarded_app
from tests.gateway.auth.unmarked_key import issue_unmarked
from tests.gateway.http.protocol.exchange import DIALECTS
from tests.gateway.http.protocol.in_memory import connection_to, turns
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock

STRANGERS = 100


class PacedStore(MemoryStore):
    """A store that finds one key for each release of `permit`."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants[ACME.id] = ACME
        self.permits = asyncio.Semaphore(0)

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        await self.permits.acquire()
        return await super().find_by_digest(digest)


def ask(connection: BoundedConnection, key: str, method: str) -> None:
    connection.data_received(
        f"{method} /me HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n".encode()
    )


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("leave", "waits_for"), [(True, 0), (False, STRANGERS)])
async def test_a_new_key_waits_for_no_stranger_who_has_gone(
    method: str, leave: bool, waits_for: int
) -> None:
    store, state, wire = PacedStore(), ServerState(), Wire()
    key = await issue_unmarked(store, PEPPER, ACME.id)
    app = guarded_app(Keyring(store, PEPPER, ManualClock(), monotonic=ManualClock()))
    with connection_to(wire, state, application=app) as tenant, ExitStack() as strangers:
        for number in range(STRANGERS):
            stranger = strangers.enter_context(connection_to(Wire(), state, application=app))
            ask(stranger, key_of(bytes([number]) * 32), method)
        await turns()
        ask(tenant, key, "GET")
        await turns()
        if leave:
            strangers.close()
            await turns()
        assert not wire.sent, "the store has not answered"
        for _ in range(waits_for + 1):
            assert not wire.sent
            store.permits.release()
            await turns()
        assert wire.sent[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert store.lookups == waits_for + 1


@pytest.mark.parametrize(("owner", "seen_out"), [(None, False), ("tn_acme", True)])
async def test_what_an_owner_asked_is_done_although_he_has_gone(
    owner: str | None, seen_out: bool
) -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        if owner is not None:
            tell_owner(scope, owner)
        await go.wait()
        done.set()

    with connection_to(Wire(), ServerState(), application=RequestHead(slow, DIALECTS)) as client:
        ask(client, "", "POST")
        await turns()
    await turns()
    go.set()
    await turns()
    assert done.is_set() is seen_out
