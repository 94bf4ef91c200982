"""`/admin/prefixes`: publish a prefix for all tenants or for a group, show or withdraw it.

A prefix is published under a name. Publishing the name again makes a new version, which replaces
the old version for all later requests.

Elsewhere: how a prefix becomes tokens (`gateway.sharing.published`).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from msgspec.structs import replace

from engine.errors import EngineError
from engine.link.interface import Engine
from engine.link.messages import Welcome
from engine.link.query_messages import StatsQuery
from engine.link.stats.flow_stats import PinStats
from gateway.admin.audit import AuditTrail
from gateway.admin.prefixes.prefix_views import (
    DeletedPrefix,
    NewPrefix,
    PrefixList,
    PrefixView,
    State,
    WholePrefix,
    source_of,
)
from gateway.errors import BadRequest, Conflict, NotFound, Unavailable
from gateway.http.admin_json import json_response, sent
from gateway.http.openapi import described
from gateway.sharing.published import Published, in_force
from gateway.state.records import PrefixSource, PublishedPrefix
from gateway.state.store import Store
from gateway.views import view_of

MAX_BYTES = 4 << 20  # maximum number of bytes of a body; a prefix may be a whole handbook
MAX_PUBLISHED = 1000

SentPrefix = Annotated[NewPrefix, Depends(sent(NewPrefix, max_bytes=MAX_BYTES))]


class Publishing:
    """Publishes and withdraws prefixes. This process makes one change at a time."""

    def __init__(
        self, store: Store, published: Published, engine: Engine, audit: AuditTrail
    ) -> None:
        self._store = store
        self._published = published
        self._engine = engine
        self._audit = audit
        self._turn = asyncio.Lock()

    async def publish(
        self, name: str, scope: str, source: PrefixSource, now: float
    ) -> tuple[PublishedPrefix, bool]:
        """Store a new version of a prefix and put it in force. Delete the name's older versions.

        Returns the record, and whether its version is new. If the content is published already,
        nothing changes.
        """
        async with self._turn:
            tokens = await self._published.tokens_of(source)
            records = await self._store.every(PublishedPrefix)
            for live in in_force(records):
                if (live.name, live.scope, live.source) == (name, scope, source):
                    await self._put_in_force()
                    return live, False
            await self._check(name, len(tokens), records)
            new = PublishedPrefix.new(
                name,
                1 + max((r.version for r in records if r.name == name), default=0),
                scope,
                source,
                created_at=now,
                tokens=len(tokens),
            )
            await self._store.create(new)
            await self._retire(name, new.version - 1, records, now)
            await self._audit.note(
                "prefix.create",
                new.id,
                name=new.name,
                version=new.version,
                scope=new.scope,
                tokens=len(tokens),
            )
            await self._put_in_force()
            return new, True

    async def delete(self, prefix_id: str, now: float) -> None:
        """Withdraw a prefix and all older versions of its name; raise NotFound."""
        async with self._turn:
            record = await self._store.get(PublishedPrefix, prefix_id)
            if record.deleted_at is not None:
                raise NotFound("no such prefix")
            records = await self._store.every(PublishedPrefix)
            await self._retire(record.name, record.version, records, now)
            await self._audit.note(
                "prefix.delete", prefix_id, name=record.name, version=record.version
            )
            await self._put_in_force()

    async def views(self, records: list[PublishedPrefix]) -> list[PrefixView]:
        """Make the operator's views of published prefixes, with their state in the engine."""
        pins, block_size = await self._pins()
        return [self._view(record, pins, block_size) for record in records]

    async def _check(self, name: str, tokens: int, records: list[PublishedPrefix]) -> None:
        """Refuse a prefix that cannot be published.

        If the engine refuses the prefix later, the prefix's view says so.
        """
        welcome = welcome_of(self._engine)
        if tokens < welcome.block_size:
            raise BadRequest(
                f"the prefix has {tokens} tokens; at least {welcome.block_size} are needed",
                code="prefix_too_short",
            )
        if tokens >= welcome.max_model_len:
            raise BadRequest(
                f"the prefix has {tokens} tokens; the context is {welcome.max_model_len}",
                code="context_length_exceeded",
            )
        live = in_force(records)
        if len(live) >= MAX_PUBLISHED and name not in {record.name for record in live}:
            raise Conflict(f"{MAX_PUBLISHED} prefixes are published already")
        await self._check_room(
            -(-tokens // welcome.block_size), {r.id for r in live if r.name == name}
        )

    async def _check_room(self, blocks: int, replaced: set[str]) -> None:
        pins, _ = await self._pins()
        if pins is None:
            return
        if blocks > pins.most:
            raise BadRequest(
                f"the prefix has {blocks} blocks; at most {pins.most} may be pinned",
                code="pin_too_large",
            )
        freed = sum(pins.pinned.get(pin_id, 0) for pin_id in replaced)
        if blocks > pins.most - pins.claimed + freed:
            raise Conflict(
                f"the prefix has {blocks} blocks; of the {pins.most} that may be pinned, "
                f"{pins.claimed} are in use",
                code="no_room_to_pin",
            )

    async def _retire(
        self, name: str, version: int, records: list[PublishedPrefix], now: float
    ) -> None:
        for record in records:
            if record.name == name and record.version <= version and record.deleted_at is None:
                await self._store.update(
                    PublishedPrefix, record.id, lambda one: replace(one, deleted_at=now)
                )

    async def _put_in_force(self) -> None:
        self._published.reload()  # starts a reload in the background, in case the next line fails
        with suppress(Unavailable):
            await self._published.renew()

    async def _pins(self) -> tuple[PinStats | None, int | None]:
        try:
            stats = (await self._engine.ask(StatsQuery())).stats
        except EngineError:
            return None, None
        return stats.pins, stats.pool.block_size

    def _view(
        self, record: PublishedPrefix, pins: PinStats | None, block_size: int | None
    ) -> PrefixView:
        refusal = self._published.refusal(record.id)
        tokens = record.tokens or 0
        state: State = "warming"
        if pins is None:
            state = "no engine"
        elif record.id in pins.pinned:
            state = "warm"
        elif refusal is not None:
            state = "refused"
        return view_of(
            PrefixView,
            record,
            tokens=tokens,
            blocks=None if block_size is None else -(-tokens // block_size),
            state=state,
            reason=refusal if state == "refused" else None,
        )


def welcome_of(engine: Engine) -> Welcome:
    """Return the engine's description; raise Unavailable while there is no engine."""
    welcome = engine.welcome
    if welcome is None:
        raise Unavailable("the engine is not ready yet", retry_after_s=2.0)
    return welcome


def prefixes_router(publishing: Publishing, store: Store, clock: Callable[[], float]) -> APIRouter:
    """Serve the routes below `/admin/prefixes`. `admin_router` guards the routes."""
    router = APIRouter(prefix="/admin/prefixes")

    @router.post(
        "", openapi_extra=described(PrefixView, NewPrefix, statuses=(200, 201)), status_code=201
    )
    async def create(body: SentPrefix) -> Response:
        record, is_new = await publishing.publish(body.name, body.scope, source_of(body), clock())
        [view] = await publishing.views([record])
        return json_response(view, 201 if is_new else 200)

    @router.get("", openapi_extra=described(PrefixList))
    async def list_all() -> Response:
        records = in_force(await store.every(PublishedPrefix))
        return json_response(PrefixList(await publishing.views(records)))

    @router.get("/{prefix_id}", openapi_extra=described(WholePrefix))
    async def show(prefix_id: str) -> Response:
        record = await store.get(PublishedPrefix, prefix_id)
        if record.deleted_at is not None:
            raise NotFound("no such prefix")
        [view] = await publishing.views([record])
        return json_response(view_of(WholePrefix, view, record))

    @router.delete("/{prefix_id}", openapi_extra=described(DeletedPrefix))
    async def delete(prefix_id: str) -> Response:
        await publishing.delete(prefix_id, clock())
        return json_response(DeletedPrefix(prefix_id))

    return router
