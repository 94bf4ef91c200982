"""The OpenAI dialect's implementation of the protocol `Dialect`."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from fastapi import APIRouter

from gateway.dialects import openai_shape
from gateway.dialects.dialect import RouteParts
from gateway.dialects.openai.answers.rendering import sse
from gateway.dialects.openai.deployments import BEGINNING
from gateway.dialects.openai.routes import openai_router
from gateway.errors import GatewayError
from gateway.http.error_dialect import RenderedError


class OpenAI:
    """The default dialect. Paths of no dialect, such as the operator's, belong to it too."""

    prefixes: ClassVar[tuple[str, ...]] = (
        "/v1",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/v2/rerank",
        "/rerank",
    )
    suffixes: ClassVar[tuple[str, ...]] = ()
    # Groq's clients use `/openai/v1`. Azure's clients use `/openai/v1`, `/openai`, and paths that
    # name a model.
    elsewhere: ClassVar[Mapping[str, str]] = {
        BEGINNING: "/v1",
        r"/openai(?:/v1)?(?=/)(?!/deployments/)": "/v1",
    }
    client_header: ClassVar[bytes] = b""
    exposed: ClassVar[tuple[str, ...]] = openai_shape.EXPOSED
    error_schema: ClassVar[type[msgspec.Struct]] = openai_shape.ErrorReply

    def router(self, parts: RouteParts) -> APIRouter:
        return openai_router(parts)

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:  # noqa: ARG002
        """Write the answer for `error`, with the remaining limits if a limit is hit."""
        return openai_shape.error_reply(error, error.param)

    def error_event(self, error: GatewayError, request_id: str) -> bytes:  # noqa: ARG002
        """Write the body for `error` as the last event of a stream, without `[DONE]`."""
        return sse(openai_shape.error_body(error, error.param))

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        """Write the headers with the request's id and time, under OpenAI's names."""
        return openai_shape.head_fields(request_id, spent_ms)
