"""The OpenRouter dialect's implementation of the protocol `Dialect`."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from fastapi import APIRouter

from gateway.dialects import openai_shape
from gateway.dialects.dialect import RouteParts
from gateway.dialects.openrouter.errors import RouterError, last_chunk, router_error
from gateway.dialects.openrouter_models import PREFIX
from gateway.errors import GatewayError
from gateway.http.error_dialect import RenderedError


class OpenRouter:
    """The dialect of OpenRouter: OpenAI's chats with OpenRouter's errors and models."""

    prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    suffixes: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[Mapping[str, str]] = {
        PREFIX + r"(?=/(?:models|chat/completions|completions|responses|embeddings|rerank)$)": (
            "/v1"
        )
    }
    client_header: ClassVar[bytes] = b""
    exposed: ClassVar[tuple[str, ...]] = openai_shape.EXPOSED
    error_schema: ClassVar[type[msgspec.Struct]] = RouterError

    def router(self, parts: RouteParts) -> APIRouter:
        """Return an empty router, because the routes are in OpenAI's dialect."""
        del parts
        return APIRouter()

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:
        del request_id
        headers = openai_shape.error_reply(error, error.param).headers
        return RenderedError(error.status, headers, msgspec.json.encode(router_error(error)))

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return b"data: " + msgspec.json.encode(last_chunk(error, request_id)) + b"\n\n"

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        return openai_shape.head_fields(request_id, spent_ms)
