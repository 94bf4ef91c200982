"""The Anthropic dialect's implementation of the protocol `Dialect`."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from fastapi import APIRouter

from gateway.dialects.anthropic import errors
from gateway.dialects.anthropic.limit_headers import LIMIT_FIELDS, limit_headers
from gateway.dialects.anthropic.rendering import event
from gateway.dialects.anthropic.routes import messages_router
from gateway.dialects.dialect import RouteParts
from gateway.errors import GatewayError, LimitReached
from gateway.http.error_dialect import RenderedError


class Anthropic:
    """The dialect of Anthropic's Messages API."""

    prefixes: ClassVar[tuple[str, ...]] = ("/v1/messages",)
    suffixes: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[Mapping[str, str]] = {}
    client_header: ClassVar[bytes] = b"anthropic-version"
    exposed: ClassVar[tuple[str, ...]] = ("request-id", *errors.RETRY_FIELDS, *LIMIT_FIELDS)
    error_schema: ClassVar[type[msgspec.Struct]] = errors.MessagesError

    def router(self, parts: RouteParts) -> APIRouter:
        return messages_router(parts)

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:
        """Write the answer for `error`, with the remaining limits if a limit is hit."""
        standing = limit_headers(error.standing) if isinstance(error, LimitReached) else {}
        headers = standing | errors.retry_headers(error)
        body = msgspec.json.encode(errors.messages_error(error, request_id))
        return RenderedError(errors.status_of(error), headers, body)

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return event(errors.messages_error(error, request_id))

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        del spent_ms
        return [(b"request-id", request_id.encode())]
