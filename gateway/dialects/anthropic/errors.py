"""The errors in Anthropic's shape: `{"type": "error", "error": {...}, "request_id": ...}`."""

import msgspec

from gateway.errors import BudgetSpent, Forbidden, GatewayError, LimitReached, Unauthenticated

OVERLOADED = 529  # Anthropic's status for overload, in place of 503
_LIMITED, _SHOULD_RETRY = "anthropic-ratelimit-unified-status", "x-should-retry"
RETRY_FIELDS = (_LIMITED, _SHOULD_RETRY)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Anthropic's name of each request field that has another name in OpenAI's API. Shared code uses
# OpenAI's names.
_PARAMS = {"continue_final_message": "messages"}


class ErrorCode(msgspec.Struct, frozen=True):
    """The cause of an error as a code that clients can branch on."""

    error_code: str


class ErrorDetail(msgspec.Struct, frozen=True):
    """An error. `code` and `param` are extensions, named as in OpenAI's API."""

    type: str
    message: str
    details: ErrorCode
    code: str | None = None
    param: str | None = None


class MessagesError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The body of an error answer, and the last event of a stream that fails."""

    error: ErrorDetail
    request_id: str


def messages_error(error: GatewayError, request_id: str) -> MessagesError:
    """Write the error body for `error`."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(error.status, default)
    param = None if error.param is None else _PARAMS.get(error.param, error.param)
    detail = ErrorDetail(kind, _message(error), ErrorCode(error.code), error.code, param)
    return MessagesError(error=detail, request_id=request_id)


def status_of(error: GatewayError) -> int:
    """Return the HTTP status that Anthropic's clients know for `error`."""
    return OVERLOADED if error.status == 503 else error.status


def retry_headers(error: GatewayError) -> dict[str, str]:
    """If every retry would fail, write headers that stop clients from retrying."""
    if isinstance(error, BudgetSpent):
        return {_LIMITED: "rejected", _SHOULD_RETRY: "false"}
    # without this header Claude Code sends a request with a wrong key again and again
    is_never_mended = isinstance(error, Unauthenticated | Forbidden)
    if is_never_mended or (isinstance(error, LimitReached) and error.retry_after_s is None):
        return {_SHOULD_RETRY: "false"}
    return {}


def _message(error: GatewayError) -> str:
    # agents compact the chat when the error has these words
    if error.code == "context_length_exceeded":
        return f"prompt is too long: {error.message}"
    return error.message
