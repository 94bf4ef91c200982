"""`/admin/engines`: the engines that are registered in the state, wherever they run.

Those that register themselves are listed, and leave when they end; an operator adds and removes
others by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from engine.link.address import address
from engine.link.interface import ReplicaState
from gateway.admin.audit import AuditTrail
from gateway.admin.wire import AdminBody, json_response, sent
from gateway.bounded_engine import BoundedEngine
from gateway.errors import Conflict, NotFound
from gateway.http.openapi import described
from gateway.replicas.finding import replica_name
from gateway.state.records import RegisteredEngine
from gateway.state.store import EngineRegistry

MAX_ADDRESS = 256
SILENT_S = 60.0  # after which one that registered itself may be removed by hand


def _checked(text: str) -> str:
    """The address, where an engine can have it."""
    try:
        path = address(text).path
    except ValueError as error:
        raise PydanticCustomError("address", "{why}", {"why": str(error)}) from error
    if path is not None and not path.is_absolute():
        raise PydanticCustomError(
            "address", "it must be tcp://HOST:PORT, or the absolute path of a socket"
        )
    if not text.isprintable():
        raise PydanticCustomError("address", "an address must be printable")
    return text


class NewEngine(AdminBody):
    """Body of POST: an absolute path of a Unix socket, or tcp://HOST:PORT."""

    address: Annotated[
        str,
        Field(min_length=1, max_length=MAX_ADDRESS, json_schema_extra={"pattern": "^(/|tcp://)"}),
        AfterValidator(_checked),
    ]


class FoundEngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. Times are seconds since the epoch; `beat_at` is null for one added by hand.

    `state` is how this gateway sees it, as in `/readyz`; null where it does not drive it (yet).
    """

    address: str
    added_at: float
    beat_at: float | None
    fingerprint: str | None
    state: ReplicaState | None


class FoundEngineList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/engines."""

    engines: list[FoundEngineView]


class RemovedEngine(msgspec.Struct, frozen=True):
    """Answer of DELETE. What the engine has begun goes on; gateways send it nothing new."""

    address: str


def engines_router(
    registry: EngineRegistry,
    engine: BoundedEngine,
    audit: AuditTrail,
    clock: Callable[[], float],
    *,
    finds: bool,
) -> APIRouter:
    """The routes below `/admin/engines`, without their guard. `finds`: engines in the state."""
    router = APIRouter(prefix="/admin/engines")

    def view(one: RegisteredEngine) -> FoundEngineView:
        health = engine.replicas.get(replica_name(one.address)) if finds else None
        return FoundEngineView(
            address=one.address,
            added_at=one.added_at,
            beat_at=one.beat_at,
            fingerprint=one.fingerprint,
            state=None if health is None else health.state,
        )

    @router.get("", openapi_extra=described(FoundEngineList))
    async def list_all() -> Response:
        return json_response(FoundEngineList([*map(view, await registry.registered_engines())]))

    @router.post(
        "", openapi_extra=described(FoundEngineView, NewEngine, statuses=(201,)), status_code=201
    )
    async def add(body: Annotated[NewEngine, Depends(sent(NewEngine))]) -> Response:
        place = body.address
        if not finds:
            raise Conflict("this gateway was started without --find-engines")
        if any(one.address == place for one in await registry.registered_engines()):
            raise Conflict("an engine is registered at this address")
        added = RegisteredEngine(address=place, added_at=clock())
        await registry.register_engine(added)
        await audit.note("engine.add", place)
        return json_response(view(added), 201)

    @router.delete("/{place:path}", openapi_extra=described(RemovedEngine))
    async def remove(place: str) -> Response:
        found = [one for one in await registry.registered_engines() if one.address == place]
        if not found:
            raise NotFound("no such engine")
        beat = found[0].beat_at
        if beat is not None and clock() - beat < SILENT_S:
            raise Conflict("this engine registers itself: end it where it was started")
        await registry.forget_engine(place)
        await audit.note("engine.remove", place)
        return json_response(RemovedEngine(place))

    return router
