"""Every error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

Knows: how each error of the gateway and of the web framework is rendered. Does not know: where it
came from. An unexpected exception tells the caller nothing about itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import (
    BadRequest,
    BudgetSpent,
    GatewayError,
    LimitReached,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
)
from gateway.openai.limit_headers import limit_headers


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong; `code` is stable, `message` is for people."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True):
    """The whole body of an error."""

    error: ErrorBody


_TYPES = {403: "permission_error", 429: "requests"}
_INTERNAL = GatewayError("internal error of the gateway")


def error_reply(error: GatewayError) -> ErrorReply:
    """The body for `error`."""
    return ErrorReply(ErrorBody(error.message, _type(error), error.param, error.code))


def _type(error: GatewayError) -> str:
    if isinstance(error, BudgetSpent):
        return error.code
    if isinstance(error, LimitReached) and error.reason == "tokens":
        return "tokens"
    default = "server_error" if error.status >= 500 else "invalid_request_error"
    return _TYPES.get(error.status, default)


def error_response(error: GatewayError, headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP response for `error`, with Retry-After where waiting helps."""
    extra = dict(headers or {})
    if error.retry_after_s is not None:
        extra["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, LimitReached):
        extra |= limit_headers(error.standing)
    if isinstance(error, Unauthenticated):
        extra["www-authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(error_reply(error)),
        status_code=error.status,
        headers=extra,
        media_type="application/json",
    )


def internal_error_response() -> Response:
    """The answer to an unexpected exception."""
    return error_response(_INTERNAL)


def from_http(request: Request, error: HTTPException) -> GatewayError:
    """The framework's own errors: no such route, no such method on it, an unreadable request."""
    if error.status_code == 404:
        return NotFound("there is no such route", code="unknown_url")
    if error.status_code == 405:
        return MethodNotAllowed(f"this route does not support {request.method}")
    if error.status_code < 500:
        return BadRequest("the request cannot be read")
    return _INTERNAL
