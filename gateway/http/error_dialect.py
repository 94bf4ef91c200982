"""The part of a dialect that HTTP needs: the form in which errors are sent to clients.

Errors are also raised outside of routes: before routing, in middleware, while a request is cut off.
The dialect of a request is therefore found only by the request's path, and is fixed for the whole
answer. If there is no route, the client's headers may decide.
"""

import math
import re
from collections.abc import Mapping
from http.client import responses
from typing import ClassVar, NamedTuple, Protocol

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Scope

from gateway.errors import GatewayError, RequestTimeout, Unauthenticated
from gateway.http.cors import Cors
from gateway.http.request_id import client_id_of, new_id

_KEY = "ratoon.dialect"
_DIALECTS = "ratoon.dialects"
_ID = "ratoon.request_id"
_PATH = "ratoon.path"


class RenderedError(NamedTuple):
    """An error in the form of a dialect: status, body and headers."""

    status: int
    headers: dict[str, str]  # header fields, except those that HTTP itself needs
    body: bytes
    media_type: str = "application/json"


class ErrorDialect(Protocol):
    """The part of a dialect that is used outside of its routes."""

    # beginnings of the dialect's paths; each stands for itself and all paths below
    prefixes: ClassVar[tuple[str, ...]]
    suffixes: ClassVar[tuple[str, ...]]  # ends of the dialect's paths, with any beginning
    # patterns of other path beginnings that clients use, each with the beginning that replaces it
    elsewhere: ClassVar[Mapping[str, str]]
    client_header: ClassVar[bytes]  # a header that only the dialect's clients send; b"": none
    # names of the header fields of its answers, which pages of listed origins may read
    exposed: ClassVar[tuple[str, ...]]
    error_schema: ClassVar[type[Struct]]

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:
        """Write the answer to a request that failed before any byte was sent."""
        ...

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        """Write the last frame of a stream that ends with an error."""
        ...

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        """Write header fields of every answer: the request's id, and its time in milliseconds."""
        ...


class Dialects:
    """The dialects, found by path. Paths without a dialect belong to `default`."""

    def __init__(self, default: ErrorDialect, *others: ErrorDialect) -> None:
        self.default = default
        self.exposed = [name for one in (default, *others) for name in one.exposed]
        owned = [(prefix, other) for other in others for prefix in other.prefixes]
        self._owned = sorted(owned, key=lambda pair: len(pair[0]), reverse=True)
        self._clients = [(other.client_header, other) for other in others if other.client_header]
        self._ends = [(other.suffixes, other) for other in others if other.suffixes]
        known = (pair for one in (default, *others) for pair in one.elsewhere.items())
        self._elsewhere = [(re.compile(pattern), begin) for pattern, begin in known]

    def of(self, path: str) -> ErrorDialect:
        """Return the dialect that has a suffix of `path`, or else the longest prefix of `path`."""
        for suffixes, dialect in self._ends:
            if path.endswith(suffixes):
                return dialect
        for prefix, dialect in self._owned:
            if path == prefix or path.startswith(prefix + "/"):
                return dialect
        return self.default

    def of_client(self, scope: Scope) -> ErrorDialect:
        """Return the dialect of a request without a route, by its path or else by its headers.

        Google's, Anthropic's and OpenAI's clients all ask for `/v1/files`.
        """
        found = self.of(path_sent(scope))
        if found is self.default:
            sent = {name for name, _ in scope["headers"]}
            found = next((one for header, one in self._clients if header in sent), found)
        return found

    def enter(self, scope: Scope, request_id: str) -> ErrorDialect:
        """Find the dialect of a request, and store it in `scope` for `dialect_of`.

        The request's path is replaced by the path under which the routes are known.
        """
        path = scope["path"]
        dialect = scope[_KEY] = self.of(path)
        scope[_DIALECTS] = self
        scope[_ID] = request_id
        scope[_PATH] = path
        scope["path"] = self._path_of_routes(path)
        return dialect

    def _path_of_routes(self, path: str) -> str:
        for pattern, begin in self._elsewhere:
            if found := pattern.match(path):
                return begin + path[found.end() :]
        return path


def dialect_of(scope: Scope) -> ErrorDialect:
    """Return the dialect of a request."""
    dialect: ErrorDialect = scope[_KEY]
    return dialect


def follow_client(scope: Scope) -> None:
    """Answer a request without a route in its client's dialect."""
    scope[_KEY] = scope[_DIALECTS].of_client(scope)


def path_sent(scope: Scope) -> str:
    """Return the path that the client sent. The route may have another path."""
    path: str = scope[_PATH]
    return path


def error_response(
    scope: Scope, error: GatewayError, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with `error`, with the field Retry-After if waiting helps."""
    reply = dialect_of(scope).error_reply(error, scope[_ID])
    extra = dict(headers or {}) | _retry_after(error) | reply.headers
    if isinstance(error, Unauthenticated):
        extra["www-authenticate"] = "Bearer"
    # the connection is closed, since the rest of the request is not awaited
    if isinstance(error, RequestTimeout):
        extra["connection"] = "close"
    return Response(
        reply.body, status_code=reply.status, headers=extra, media_type=reply.media_type
    )


def error_message(
    dialect: ErrorDialect, error: GatewayError, scope: Scope | None = None, cors: Cors | None = None
) -> bytes:
    """Write a connection's last message, for a request that the application cannot answer.

    `scope` holds the request's head. `scope` is None if no head has been received.
    """
    request_id = (None if scope is None else client_id_of(scope)) or new_id()
    reply = dialect.error_reply(error, request_id)
    origin = [] if scope is None or cors is None else cors.fields(scope)
    head = [*dialect.head_fields(request_id, 0), *origin]
    named = {name.decode(): value.decode("latin-1") for name, value in head}
    fields = _retry_after(error) | reply.headers | named
    lines = [
        f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}",
        f"content-type: {reply.media_type}",
        f"content-length: {len(reply.body)}",
        *(f"{name}: {value}" for name, value in fields.items()),
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + reply.body


def _retry_after(error: GatewayError) -> dict[str, str]:
    if error.retry_after_s is None:
        return {}
    return {
        "retry-after": str(max(1, math.ceil(error.retry_after_s))),
        # most clients read this field first; `retry-after` cannot express less than a second
        "retry-after-ms": str(max(1, math.ceil(error.retry_after_s * 1000))),
    }
