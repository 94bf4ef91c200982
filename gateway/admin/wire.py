"""How the admin routes read and write JSON.

A body is bounded, typed, and refused when it has a field that the route does not know, so that a
misspelt `tenant` does not mean "all tenants".
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Request, Response

from gateway.errors import BadRequest
from gateway.http import body

T = TypeVar("T", bound=msgspec.Struct)

MAX_BODY_BYTES = 64 << 10
MAX_DEPTH = 64  # of nested JSON
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class AdminBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every admin request body."""


async def read_body(request: Request, body_type: type[T], *, max_bytes: int = MAX_BODY_BYTES) -> T:
    """The body as `body_type`; no body at all reads as an empty object.

    Raises BodyTooLarge above `max_bytes`, BadRequest for anything but that type. Needs the room
    that `admin_router` gives to every request.
    """
    content = await body.read_body(request, max_bytes, request.state.body)
    return body.parse(msgspec.json.Decoder(body_type), content or b"{}", MAX_DEPTH)


def json_response(value: Any, status: int = 200) -> Response:
    """`value`, a Struct or built of plain types, as a JSON response."""
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def clean_name(name: str) -> str:
    """`name`, if a terminal can show it as it is; else BadRequest."""
    if not name.isprintable() or name != name.strip():
        raise BadRequest(
            "a name must be printable and must not begin or end with a blank", param="name"
        )
    return name
