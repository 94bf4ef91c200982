"""The Responses API's implementation of the protocol `Dialect`."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from fastapi import APIRouter

from gateway.dialects import openai_shape
from gateway.dialects.dialect import RouteParts
from gateway.dialects.responses.routes import responses_router
from gateway.errors import GatewayError
from gateway.http.error_dialect import RenderedError

# This dialect's name of each request field that has another name in chats. Shared code uses the
# chats' names.
_NAMES = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}


class Responses:
    """The dialect of `/v1/responses`, with the errors of OpenAI's other APIs."""

    prefixes: ClassVar[tuple[str, ...]] = ("/v1/responses",)
    suffixes: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[Mapping[str, str]] = {}
    client_header: ClassVar[bytes] = b""
    exposed: ClassVar[tuple[str, ...]] = openai_shape.EXPOSED
    error_schema: ClassVar[type[msgspec.Struct]] = openai_shape.ErrorReply

    def router(self, parts: RouteParts) -> APIRouter:
        return responses_router(parts)

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:  # noqa: ARG002
        """Write the answer for `error`, with this dialect's name of the wrong field."""
        return openai_shape.error_reply(error, _renamed(error.param))

    def error_event(self, error: GatewayError, request_id: str) -> bytes:  # noqa: ARG002
        """Write the event `error`, for a stream that fails before its response has an id."""
        body = {
            "type": "error",
            "sequence_number": 0,
            "code": error.code,
            "message": error.message,
            "param": _renamed(error.param),
        }
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(body)

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        return openai_shape.head_fields(request_id, spent_ms)


def _renamed(param: str | None) -> str | None:
    if param is None:
        return None
    for theirs, ours in _NAMES.items():
        if param == theirs or param.startswith((f"{theirs}.", f"{theirs}[")):
            return ours
    return param
