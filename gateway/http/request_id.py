"""The two ids of a request: the server's and the client's.

The server's id is unique, so it names responses and the engine's requests. A client's
`x-request-id` is repeated in the answer's head, in logs and traces, and names nothing.
"""

import re
import uuid

from starlette.types import Scope

from gateway.http.cors import one_field

_VISIBLE = re.compile(rb"[!-~]{1,128}")


def new_id() -> str:
    """Make an id of 32 hexadecimal digits that no other request has."""
    return uuid.uuid4().hex


def client_id_of(scope: Scope) -> str | None:
    """Read the client's id: at most 128 visible ASCII characters; None for any other value."""
    given = one_field(scope, b"x-request-id")
    return given.decode() if given is not None and _VISIBLE.fullmatch(given) else None
