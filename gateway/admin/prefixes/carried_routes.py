"""The routes that export and import a published prefix's KV as bytes.

`ratoon prefixes export` writes these bytes to a sealed and signed file, which `import` reads.
"""

import base64
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.admin.prefixes.carried_in import BegunImport, CarriedIn, EndedImport, NewImport
from gateway.admin.prefixes.carried_out import CarriedOut, ExportedPrefix
from gateway.admin.prefixes.prefix_routes import MAX_BYTES
from gateway.errors import BadRequest
from gateway.http.admin_json import AdminBody, json_response, sent
from gateway.http.bodies.reading import read_body
from gateway.http.openapi import described
from gateway.state.records import PublishedPrefix

MAX_UNITS_BYTES = 16 << 20
OCTETS = "application/octet-stream"
SentImport = Annotated[NewImport, Depends(sent(NewImport, max_bytes=MAX_BYTES))]
SentEnd = Annotated[EndedImport, Depends(sent(EndedImport, max_bytes=MAX_BYTES))]
MOST_UNITS = 1 << 31
Place = Annotated[int, Query(json_schema_extra={"minimum": 0, "maximum": MOST_UNITS})]


class FileDigest(AdminBody):
    """Body of POST /admin/prefixes/{id}/signature: the file's SHA-256, in hex."""

    digest: str


class FileSignature(msgspec.Struct, frozen=True):
    """Answer of POST /admin/prefixes/{id}/signature: 64 bytes of Ed25519, in base64."""

    signature: str


def carried_router(out: CarriedOut, into: CarriedIn, clock: Callable[[], float]) -> APIRouter:
    """Serve the routes of exports and imports. `admin_router` guards the routes."""
    # left out of the OpenAPI description, since only the command line uses these routes
    router = APIRouter(include_in_schema=False)
    _add_exports(router, out)
    _add_imports(router, into, clock)
    return router


def _add_exports(router: APIRouter, out: CarriedOut) -> None:
    @router.get("/admin/prefixes/{prefix_id}/export", openapi_extra=described(ExportedPrefix))
    async def export(prefix_id: str) -> Response:
        return json_response(await out.described(prefix_id))

    @router.get(
        "/admin/prefixes/{prefix_id}/units",
        response_class=Response,
        openapi_extra=described(None, texts=[OCTETS]),
    )
    async def units(prefix_id: str, first: Place = 0, count: Place = 1) -> Response:
        _check(first=first, count=count)
        return Response(await out.units(prefix_id, first, count), media_type=OCTETS)

    @router.post(
        "/admin/prefixes/{prefix_id}/signature", openapi_extra=described(FileSignature, FileDigest)
    )
    async def sign(
        prefix_id: str, body: Annotated[FileDigest, Depends(sent(FileDigest))]
    ) -> Response:
        signature = await out.signature(prefix_id, body.digest)
        return json_response(FileSignature(base64.b64encode(signature).decode()))


def _add_imports(router: APIRouter, into: CarriedIn, clock: Callable[[], float]) -> None:
    @router.post(
        "/admin/imports",
        openapi_extra=described(BegunImport, NewImport, statuses=(201,)),
        status_code=201,
    )
    async def begin(body: SentImport) -> Response:
        return json_response(await into.begin(body), 201)

    @router.put("/admin/imports/{import_id}/units", openapi_extra=described(BegunImport))
    async def write(import_id: str, request: Request, first: Place = 0) -> Response:
        _check(first=first)
        payload = await read_body(request, MAX_UNITS_BYTES, request.state.body)
        return json_response(await into.write(import_id, first, bytes(payload)))

    @router.post(
        "/admin/imports/{import_id}/end",
        openapi_extra=described(PublishedPrefix, EndedImport, statuses=(201,)),
        status_code=201,
    )
    async def end(import_id: str, body: SentEnd) -> Response:
        return json_response(await into.end(import_id, body, clock()), 201)

    @router.delete("/admin/imports/{import_id}", openapi_extra=described(BegunImport))
    async def drop(import_id: str) -> Response:
        return json_response(await into.drop(import_id))


def _check(**places: int) -> None:
    for name, place in places.items():
        if not 0 <= place <= MOST_UNITS:
            raise BadRequest(f"`{name}` must be from 0 to {MOST_UNITS}", param=name)
