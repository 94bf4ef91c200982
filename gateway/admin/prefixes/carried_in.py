"""The import of a prefix that another installation has exported, into all engines.

    begin (compare with the model here, make room) -> write units -> end (publish the prefix)

Before the end nothing is published and no block is in the cache. If an import does not end within a
minute, the engines drop it. The command line opens the file.
"""

import asyncio
import secrets
from contextlib import AsyncExitStack
from typing import Annotated

import msgspec
from pydantic import Field

from engine.errors import EngineError
from engine.link.carrying_messages import BeginImport, EndImport, WriteImport
from engine.link.gateway_end.outlasting import outlasting
from engine.link.interface import Engine
from engine.link.messages import pack_token_ids
from gateway.admin.audit import AuditTrail
from gateway.admin.prefixes.carried_out import tokens_digest
from gateway.admin.prefixes.prefix_routes import Publishing, welcome_of
from gateway.errors import Conflict, Unavailable, refusing
from gateway.http.admin_json import AdminBody, Name
from gateway.http.struct_field import StructField
from gateway.sharing.published import Published, pinned_tokens
from gateway.state.records import EVERYONE, Group, PrefixSource, PublishedPrefix
from gateway.state.store import Store
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath

ROOM_S = 10.0
LOOK_S = 0.05
SentSource = Annotated[PrefixSource, StructField(PrefixSource)]
Count = Annotated[int, Field(ge=0, le=1 << 31)]


class NewImport(AdminBody):
    """Body of POST /admin/imports: a prefix as GET /admin/prefixes/{id}/export describes it."""

    fingerprint: str
    unit_bytes: Count
    blocks: Count
    state_units: Count
    tokens_digest: str
    source: SentSource
    scope: str = EVERYONE


class EndedImport(AdminBody):
    """Body of POST /admin/imports/{id}/end: the name under which the prefix is published."""

    name: Name
    source: SentSource
    scope: str = EVERYONE


class BegunImport(msgspec.Struct, frozen=True):
    """Answer of POST /admin/imports, and of each write of units to an import."""

    id: str


class CarriedIn:
    """The running imports of one gateway process. Used in one event loop."""

    def __init__(
        self,
        store: Store,
        published: Published,
        engine: Engine,
        publishing: Publishing,
        audit: AuditTrail,
    ) -> None:
        self._store = store
        self._published = published
        self._engine = engine
        self._publishing = publishing
        self._audit = audit

    async def begin(self, body: NewImport) -> BegunImport:
        """Compare the prefix with the model here, and make room for it.

        Raises Conflict if the prefix comes from another model or other settings, or if its text
        gives other tokens here. Raises NotFound for an unknown group, BadRequest for a source that
        the model refuses, and Unavailable if there is no room.
        """
        welcome = welcome_of(self._engine)
        if body.fingerprint != welcome.fingerprint.hex():
            raise _not_of_here(
                "it was computed by another model, or with other settings or kernels: its"
                f" fingerprint is {body.fingerprint[:64]}, here {welcome.fingerprint.hex()}"
            )
        if body.scope != EVERYONE:
            await self._store.get(Group, body.scope)
        tokens = await self._published.tokens_of(body.source)
        if tokens_digest(tokens) != body.tokens_digest:
            raise _not_of_here("its source has other tokens here: another chat template?")
        whole = pinned_tokens(tokens, welcome.block_size, has_states=welcome.has_states)
        if len(whole) != body.blocks * welcome.block_size or not body.blocks:
            raise _not_of_here("its tokens do not fill its blocks")
        namespace = self._published.namespaces.published(body.scope, welcome.fingerprint)
        query = BeginImport(
            import_id=f"im_{secrets.token_hex(8)}",
            token_ids=pack_token_ids(whole),
            namespace=namespace,
            block_keys=block_keys(NamespacePath.single(namespace), whole, welcome.block_size),
            unit_bytes=body.unit_bytes,
            state_units=body.state_units,
        )
        await self._await_room(query)
        return BegunImport(query.import_id)

    async def write(self, import_id: str, first: int, payload: bytes) -> BegunImport:
        """Write whole units of KV; raise BadRequest, or Conflict for an unknown import."""
        with refusing():
            await self._engine.ask(WriteImport(import_id=import_id, first=first, payload=payload))
        return BegunImport(import_id)

    async def end(self, import_id: str, body: EndedImport, now: float) -> PublishedPrefix:
        """Put the blocks in the cache and publish the prefix.

        Raises the errors of `write` and `publish`.
        """
        with refusing():
            await self._engine.ask(EndImport(import_id=import_id))
        record, _ = await self._publishing.publish(body.name, body.scope, body.source, now)
        await self._audit.note("prefix.import", record.id, name=record.name)
        return record

    async def drop(self, import_id: str) -> BegunImport:
        """Drop an import; raise Conflict for an unknown import."""
        with refusing():
            await self._engine.ask(EndImport(import_id=import_id, is_kept=False))
        return BegunImport(import_id)

    async def _await_room(self, query: BeginImport) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + ROOM_S
        async with AsyncExitStack() as refused:
            # give up also if the caller leaves, because other engines may hold a place
            refused.push_async_callback(self._give_up, query.import_id)
            with refusing():
                while not (await self._engine.ask(query)).is_ready:
                    if loop.time() > give_up:
                        raise Unavailable(
                            "there is no room on the device now", retry_after_s=ROOM_S
                        )
                    await asyncio.sleep(LOOK_S)
            refused.pop_all()

    async def _give_up(self, import_id: str) -> None:
        await outlasting(self._ask_to_drop(import_id), ROOM_S)

    async def _ask_to_drop(self, import_id: str) -> None:
        try:
            await self._engine.ask(EndImport(import_id=import_id, is_kept=False))
        except EngineError:  # the engine drops the import after a minute
            return


def _not_of_here(why: str) -> Conflict:
    return Conflict(f"the prefix cannot be used here: {why}", code="prefix_not_carried")
