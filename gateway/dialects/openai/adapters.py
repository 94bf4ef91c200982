"""The routes by which a tenant loads and drops its LoRA adapters, at the paths of vLLM's routes.

The operator limits the number of a tenant's adapters. The adapters' folders are below the tenant's
folder.
"""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Meta

from gateway.dialects.dialect import Permitted, RouteParts
from gateway.dialects.dialect_request import json_response, read_wire
from gateway.dialects.openai_shape import limit_headers
from gateway.http.openapi import described
from gateway.requests.permits import Permit
from gateway.tenant_adapters import NAME_PATTERN, TenantAdapter

# `$` alone would also match before a final line break, unlike in pydantic's patterns
AdapterName = Annotated[str, Meta(pattern=NAME_PATTERN + r"(?!\n)")]


class LoadAdapterRequest(msgspec.Struct, frozen=True):
    """Body of `/v1/load_lora_adapter`. The path is below the tenant's own folder."""

    lora_name: AdapterName
    lora_path: Annotated[str, Meta(min_length=1, max_length=1024)]


class UnloadAdapterRequest(msgspec.Struct, frozen=True):
    """Body of `/v1/unload_lora_adapter`."""

    lora_name: AdapterName


class UnloadedAdapter(msgspec.Struct, frozen=True):
    """The adapter that requests can no longer name."""

    name: str


_LOAD = msgspec.json.Decoder(LoadAdapterRequest)
_UNLOAD = msgspec.json.Decoder(UnloadAdapterRequest)


def add_adapters(router: APIRouter, parts: RouteParts, permitted: Permitted) -> None:
    """Add the routes to `router`."""
    adapters, admission, bounds = parts.adapters, parts.answering.admission, parts.bounds
    PermitOf = Annotated[Permit, Depends(permitted)]

    @router.post(
        "/v1/load_lora_adapter", openapi_extra=described(TenantAdapter, LoadAdapterRequest)
    )
    async def load_lora_adapter(request: Request, permit: PermitOf) -> Response:
        wire = await read_wire(request, permit, _LOAD, bounds, admission)
        tenant_id = permit.caller.tenant_id
        made = await adapters.load_own(tenant_id, wire.lora_name, wire.lora_path)
        await permit.give_back()
        return json_response(msgspec.json.encode(made), limit_headers(permit.standing))

    @router.post(
        "/v1/unload_lora_adapter", openapi_extra=described(UnloadedAdapter, UnloadAdapterRequest)
    )
    async def unload_lora_adapter(request: Request, permit: PermitOf) -> Response:
        wire = await read_wire(request, permit, _UNLOAD, bounds, admission)
        await adapters.drop(permit.caller.tenant_id, wire.lora_name, is_own=True)
        await permit.give_back()
        shown = UnloadedAdapter(wire.lora_name)
        return json_response(msgspec.json.encode(shown), limit_headers(permit.standing))
