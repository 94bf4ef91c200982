"""`/admin/engines`: list, add and remove the engines registered in the state.

Engines that register themselves leave the list when they end. An operator adds and removes other
engines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from engine.link.address import address
from engine.link.interface import Engine, ReplicaState
from gateway.admin.audit import AuditTrail
from gateway.errors import Conflict, NotFound
from gateway.http.admin_json import AdminBody, json_response, sent
from gateway.http.openapi import described
from gateway.replicas.finding import replica_name
from gateway.state.records import RegisteredEngine
from gateway.state.store import EngineRegistry

MAX_ADDRESS = 256
SILENT_S = 60.0  # seconds of silence after which an operator may remove a self-registered engine


def _checked(text: str) -> str:
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
    """Body of POST /admin/engines, with an engine's address.

    The address is the absolute path of a Unix socket, or tcp://HOST:PORT.
    """

    address: Annotated[
        str,
        Field(min_length=1, max_length=MAX_ADDRESS, json_schema_extra={"pattern": "^(/|tcp://)"}),
        AfterValidator(_checked),
    ]


class FoundEngineView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered engine. Times are seconds since the epoch. `beat_at` is null without heartbeats.

    `state` is the engine's state in this gateway's `/readyz`, or null if the gateway does not use
    the engine.
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
    """The removed engine. Its requests continue. Gateways send it no new requests."""

    address: str


@dataclass(frozen=True, slots=True)
class _Engines:
    """The parts of the gateway to update when an engine is added or removed.

    `finds` tells whether the gateway uses registered engines.
    """

    registry: EngineRegistry
    engine: Engine
    audit: AuditTrail
    clock: Callable[[], float]
    finds: bool

    def view(self, one: RegisteredEngine) -> FoundEngineView:
        health = self.engine.replicas.get(replica_name(one.address)) if self.finds else None
        return FoundEngineView(
            address=one.address,
            added_at=one.added_at,
            beat_at=one.beat_at,
            fingerprint=one.fingerprint,
            state=None if health is None else health.state,
        )

    async def list_all(self) -> FoundEngineList:
        return FoundEngineList([*map(self.view, await self.registry.registered_engines())])

    async def add(self, place: str) -> FoundEngineView:
        if not self.finds:
            raise Conflict("this gateway was started without --find-engines")
        if any(one.address == place for one in await self.registry.registered_engines()):
            raise Conflict("an engine is registered at this address")
        added = RegisteredEngine(address=place, added_at=self.clock())
        await self.registry.register_engine(added)
        await self.audit.note("engine.add", place)
        return self.view(added)

    async def remove(self, place: str) -> RemovedEngine:
        found = [one for one in await self.registry.registered_engines() if one.address == place]
        if not found:
            raise NotFound("no such engine")
        beat = found[0].beat_at
        if beat is not None and self.clock() - beat < SILENT_S:
            raise Conflict("this engine registers itself: end it where it was started")
        await self.registry.forget_engine(place)
        await self.audit.note("engine.remove", place)
        return RemovedEngine(place)


def engines_router(
    registry: EngineRegistry,
    engine: Engine,
    audit: AuditTrail,
    clock: Callable[[], float],
    *,
    finds: bool,
) -> APIRouter:
    """Serve the routes below `/admin/engines`.

    `finds` tells whether the gateway uses the engines registered in the state.
    """
    router = APIRouter(prefix="/admin/engines")
    engines = _Engines(registry, engine, audit, clock, finds)

    @router.get("", openapi_extra=described(FoundEngineList))
    async def list_all() -> Response:
        return json_response(await engines.list_all())

    @router.post(
        "", openapi_extra=described(FoundEngineView, NewEngine, statuses=(201,)), status_code=201
    )
    async def add(body: Annotated[NewEngine, Depends(sent(NewEngine))]) -> Response:
        return json_response(await engines.add(body.address), 201)

    @router.delete("/{place:path}", openapi_extra=described(RemovedEngine))
    async def remove(place: str) -> Response:
        return json_response(await engines.remove(place))

    return router
