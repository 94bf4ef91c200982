"""The routes `/v1/modules`, which store, show and delete a tenant's module schemas.

A request names a module schema in `ratoon.modules`. The schema's id is computed from its content.
Equal content is stored once, and changed content is another schema.

Elsewhere: how a prompt is made of modules (`gateway.prompts.modules`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import UNSET, Meta, Raw, UnsetType

from engine.errors import EngineError
from engine.link.query_messages import Flush
from gateway.dialects.dialect import Permitted, RouteParts
from gateway.dialects.dialect_request import json_response, read_wire
from gateway.dialects.openai_shape import limit_headers
from gateway.errors import BadRequest, NotFound
from gateway.http.openapi import described
from gateway.processes.fair_executor import Steps
from gateway.prompts.modules.pml import schema_of_pml
from gateway.prompts.modules.schema import MOST_SCHEMA_BYTES, ModuleSpecs, Name, SchemaSpec
from gateway.prompts.pipeline.module_prompts import StoredSchema
from gateway.requests.permits import Permit

_PATH = "/v1/modules"


class ModulesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/modules`: a schema as JSON, or as PML."""

    name: Annotated[str, Meta(max_length=128)] | None = None
    modules: ModuleSpecs | None = None
    scaffolds: tuple[tuple[Name, ...], ...] = ()
    pml: Annotated[str, Meta(max_length=MOST_SCHEMA_BYTES)] | None = None

    BEYOND_TYPES: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {
                "required": [one],
                "properties": {one: {"not": {"type": "null"}}, other: {"type": "null"}},
            }
            for one, other in (("modules", "pml"), ("pml", "modules"))
        ]
    }


class PlacedModuleView(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt module of a schema. Positions are counted from the schema's beginning."""

    name: str | None  # None: the module is part of every prompt
    position: int
    tokens: int
    parameters: dict[str, int]


class ModulesView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored module schema. `schema` is its JSON, absent in lists."""

    id: str
    object: Literal["modules"] = "modules"
    name: str
    created_at: int
    positions: int
    modules: list[PlacedModuleView]
    schema: Raw | UnsetType = UNSET


class ModulesList(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's module schemas, the oldest first."""

    object: Literal["list"] = "list"
    data: list[ModulesView]


class ModulesDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted module schema. Its KV blocks are dropped, and no request can reach them."""

    id: str
    object: Literal["modules.deleted"] = "modules.deleted"
    deleted: Literal[True] = True


_REQUEST = msgspec.json.Decoder(ModulesRequest)


def add_modules(router: APIRouter, parts: RouteParts, permitted: Permitted) -> None:
    """Add the routes to `router`."""
    admission, bounds = parts.answering.admission, parts.bounds
    PermitOf = Annotated[Permit, Depends(permitted)]

    async def stored_schema(permit: Permit, schema_id: str) -> StoredSchema:
        caller = permit.caller
        modules, welcome = admission.module_prompts, await admission.engine()
        record = await modules.read(caller.tenant_id, schema_id, permit.body)
        work = modules.shown(record, modules.context(caller, welcome))
        return await admission.off_the_loop(caller, work, len(memoryview(record.content)))

    @router.post(_PATH, openapi_extra=described(ModulesView, ModulesRequest))
    async def store_modules(request: Request, permit: PermitOf) -> Response:
        wire = await read_wire(request, permit, _REQUEST, bounds, admission)
        modules, welcome = admission.module_prompts, await admission.engine()

        def work() -> Steps[StoredSchema]:
            return (yield from modules.placed(_schema_of(wire), permit.caller, welcome))

        made = await admission.off_the_loop(permit.caller, work(), permit.body.size)
        kept = await modules.store.keep_schema(made.record)
        return await _replied(_view(StoredSchema(kept, made.spec, made.placed)), permit)

    @router.get(_PATH, openapi_extra=described(ModulesList))
    async def list_modules(permit: PermitOf) -> Response:
        shown = list[tuple[float, ModulesView]]()
        for schema_id in await admission.module_prompts.store.schema_ids(permit.caller.tenant_id):
            with suppress(NotFound):  # another request has deleted the schema meanwhile
                stored = await stored_schema(permit, schema_id)
                shown.append((stored.record.created_at, _view(stored)))
            permit.body.release()  # frees the body before the next schema is read
        shown.sort(key=lambda one: (one[0], one[1].id))
        return await _replied(ModulesList(data=[view for _, view in shown]), permit)

    @router.get(f"{_PATH}/{{id}}", openapi_extra=described(ModulesView))
    async def show_modules(id: str, permit: PermitOf) -> Response:  # noqa: A002 (the path's name)
        stored = await stored_schema(permit, id)
        shown = msgspec.structs.replace(_view(stored), schema=stored.record.content)
        return await _replied(shown, permit)

    @router.delete(f"{_PATH}/{{id}}", openapi_extra=described(ModulesDeleted))
    async def delete_modules(id: str, permit: PermitOf) -> Response:  # noqa: A002
        modules, flow = admission.module_prompts, permit.caller.tenant_id
        await modules.store.find_schema(flow, id)
        await modules.store.drop_schema(flow, id)
        names = modules.namespaces.schema(permit.caller, id)
        asked = (parts.card.engine.ask(Flush(flow=flow, namespace=one)) for one in names)
        failed = await asyncio.gather(*asked, return_exceptions=True)
        _raise_unexpected(failed)
        return await _replied(ModulesDeleted(id=id), permit)


def _raise_unexpected(found: Sequence[object]) -> None:
    """Raise the first error that is not an engine's error.

    An engine's error is harmless: the schema's KV blocks stay, but no request can reach them.
    """
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, EngineError):
            raise one


def _schema_of(wire: ModulesRequest) -> SchemaSpec:
    if (wire.pml is None) == (wire.modules is None):
        raise BadRequest("a schema is given as either `modules` or `pml`", param="modules")
    if wire.pml is None:
        return SchemaSpec(wire.modules or (), wire.name or "", wire.scaffolds)
    if wire.scaffolds or wire.name is not None:
        raise BadRequest("a schema in PML has its name and scaffolds in there", param="pml")
    return schema_of_pml(wire.pml)


def _view(stored: StoredSchema) -> ModulesView:
    return ModulesView(
        id=stored.record.id,
        name=stored.spec.name,
        created_at=int(stored.record.created_at),
        positions=stored.placed.length,
        modules=[
            PlacedModuleView(
                name=one.name,
                position=one.first,
                tokens=one.num_tokens,
                parameters={name: room.length for name, room in one.parameters.items()},
            )
            for one in stored.placed.modules
        ],
    )


async def _replied(shown: msgspec.Struct, permit: Permit) -> Response:
    await permit.give_back()
    return json_response(msgspec.json.encode(shown), limit_headers(permit.standing))
