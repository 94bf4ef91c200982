"""The Gemini dialect's implementation of the protocol `Dialect`."""

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

# The methods after a resource's name in a path, such as `:generateContent`.
_METHODS = (
    *(":generateContent", ":streamGenerateContent", ":countTokens"),
    *(":embedContent", ":batchEmbedContents"),
)


class Gemini:
    """The dialect of Gemini's API."""

    prefixes: ClassVar[tuple[str, ...]] = ("/v1beta", "/v1/cachedContents")
    suffixes: ClassVar[tuple[str, ...]] = _METHODS
    elsewhere: ClassVar[Mapping[str, str]] = {}
    client_header: ClassVar[bytes] = b"x-goog-api-key"
    exposed: ClassVar[tuple[str, ...]] = ("x-request-id",)
    error_schema: ClassVar[type[msgspec.Struct]] = errors.GeminiError

    def router(self, parts: RouteParts) -> APIRouter:
        return gemini_router(parts)

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:
        del request_id
        return RenderedError(error.status, {}, msgspec.json.encode(errors.gemini_error(error)))

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        del request_id
        return event(errors.gemini_error(error))

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        del spent_ms
        return [(b"x-request-id", request_id.encode())]
