"""Errors as OpenRouter writes them: `code` is the HTTP status, `metadata` has the stable name."""

from __future__ import annotations

import time

import msgspec

from gateway.errors import GatewayError


class RouterMetadata(msgspec.Struct, frozen=True):
    """The stable name of an error, and the wrong field."""

    error_type: str
    param: str | None


class RouterErrorBody(msgspec.Struct, frozen=True):
    """The fields of an error."""

    code: int
    message: str
    metadata: RouterMetadata


class RouterError(msgspec.Struct, frozen=True):
    """The body of an error answer."""

    error: RouterErrorBody


class RouterLastChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The last chunk of a chat that ends with an error."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str = ""
    choices: tuple[()] = ()
    error: RouterErrorBody


def router_error(error: GatewayError) -> RouterError:
    """Write the error body for `error`."""
    metadata = RouterMetadata(error.code, error.param)
    return RouterError(RouterErrorBody(error.status, error.message, metadata))


def last_chunk(error: GatewayError, request_id: str) -> RouterLastChunk:
    """Write the last chunk of a stream that ends with `error`."""
    body = router_error(error).error
    return RouterLastChunk(id=request_id, created=int(time.time()), error=body)
