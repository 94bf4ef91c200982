"""How the admin routes read and write JSON.

A body is bounded, typed, and refused when it has a field that the route does not know: a
misspelt `tenant` must not turn into "all tenants".

Knows: bytes and types. Does not know: what a route does with them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Request, Response

from gateway.errors import BadRequest, BodyTooLarge

T = TypeVar("T", bound=msgspec.Struct)

MAX_BODY_BYTES = 64 << 10
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]

_FIELD = re.compile(r" - at `\$\.(\w+)")


class AdminBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every admin request body."""


async def read_body(request: Request, body_type: type[T], *, max_bytes: int = MAX_BODY_BYTES) -> T:
    """The body as `body_type`; no body at all reads as an empty object.

    Raises BodyTooLarge above `max_bytes`, BadRequest for anything but that type.
    """
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > max_bytes:
            raise BodyTooLarge(f"The body is larger than {max_bytes} bytes.")
    try:
        return msgspec.json.decode(bytes(content) or b"{}", type=body_type)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        raise BadRequest(str(error), param=field[1] if field else None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The body is not valid JSON.", code="invalid_json") from None


def json_response(value: Any, status: int = 200) -> Response:
    """`value`, a Struct or built of plain types, as a JSON response."""
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def clean_name(name: str) -> str:
    """`name` when a terminal may show it as it is; else BadRequest."""
    if not name.isprintable() or name != name.strip():
        raise BadRequest("A name is printable, without blanks around it.", param="name")
    return name
