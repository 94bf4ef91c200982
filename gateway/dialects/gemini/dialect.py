"""The Gemini dialect's implementation of the protocol `Dialect`.

Knows: the dialect's paths and parts. Does not know: the dialect's fields or answers.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from fastapi import APIRouter

from gateway.dialects.dialect import RouteParts
from gateway.dialects.gemini import errors
from gateway.dialects.gemini.answers.rendering import event
from gateway.dialects.gemini.routes import gemini_router
from gateway.errors import GatewayError
from gateway.http.error_dialect import RenderedError

# Google calls the part of a path after a resource's name (`:generateContent`) a custom method.
_METHODS = (
    *(":generateContent", ":streamGenerateContent", ":countTokens"),
    *(":embedContent", ":batchEmbedContents"),
)


class Gemini:
    """The dialect of Gemini's API."""

    prefixes: ClassVar[tuple[str, ...]] = ("/v1beta", "/v1/cachedContents")
    suffixes: ClassVar[tuple[str, ...]] = _METHODS
    elsewhere: ClassVar[Mapping[str, str]] = {}
    error_schema: ClassVar[type[msgspec.Struct]] = errors.GeminiError

    def router(self, parts: RouteParts) -> APIRouter:
        """Return a router with all routes of the dialect."""
        return gemini_router(parts)

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:
        """Write the answer for `error`."""
        del request_id
        return RenderedError(error.status, {}, msgspec.json.encode(errors.gemini_error(error)))

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        """Write the body for `error` as the last event of a stream."""
        del request_id
        return event(errors.gemini_error(error))

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        """Write the header with the request's id."""
        del spent_ms
        return [(b"x-request-id", request_id.encode())]
