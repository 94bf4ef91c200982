"""The errors in Google's shape: `{"error": {"code", "message", "status", "details"}}`."""

from typing import Literal

from msgspec import Struct

from gateway.errors import GatewayError

_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
# Gemini's name of each request field that has another name in OpenAI's API. Shared code uses
# OpenAI's names.
_PARAMS = {
    "cache_salt": "cacheSalt",
    "continue_final_message": "contents",
    "messages": "contents",
    "tool_choice": "toolConfig",
}
# Seconds of delay in a 429 if no retry can succeed, since Google's clients know no field for "do
# not retry". gemini-cli retries ten times after a shorter delay, but asks its user if the delay is
# above 5 minutes.
_NEVER_S = 86_400.0


def _typed(name: str) -> str:
    return f"type.googleapis.com/google.rpc.{name}"


class _Detail(Struct, frozen=True, kw_only=True, rename="camel", tag_field="@type", tag=_typed):
    """The base of an error's details. `@type` names Google's message type."""


class ErrorInfo(_Detail, frozen=True, kw_only=True):
    """The cause of an error as a code that clients can branch on."""

    reason: str
    domain: Literal["ratoon"] = "ratoon"


class FieldViolation(Struct, frozen=True):
    """A wrong field of the request, and the reason."""

    field: str
    description: str


class FieldViolations(
    _Detail, frozen=True, kw_only=True, tag="type.googleapis.com/google.rpc.BadRequest"
):
    """The wrong fields of the request."""

    field_violations: list[FieldViolation]


class RetryInfo(_Detail, frozen=True, kw_only=True):
    """The time after which a request may be sent again, such as `3s`."""

    retry_delay: str


class GoogleError(Struct, frozen=True):
    """An error's fields."""

    code: int
    message: str
    status: str
    details: list[ErrorInfo | FieldViolations | RetryInfo]


class GeminiError(Struct, frozen=True):
    """The body of an error answer, and the last event of a stream that fails."""

    error: GoogleError


def gemini_error(error: GatewayError) -> GeminiError:
    """Write the error body for `error`."""
    default = "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT"
    details: list[ErrorInfo | FieldViolations | RetryInfo] = [ErrorInfo(reason=error.code)]
    if error.param is not None:
        at = _PARAMS.get(error.param, error.param)
        details.append(FieldViolations(field_violations=[FieldViolation(at, error.message)]))
    delay_s = _NEVER_S if error.status == 429 else None
    if error.retry_after_s is not None:
        delay_s = error.retry_after_s
    if delay_s is not None:
        details.append(RetryInfo(retry_delay=f"{delay_s:.3f}s"))
    status = _STATUSES.get(error.status, default)
    return GeminiError(GoogleError(error.status, _message(error), status, details))


def _message(error: GatewayError) -> str:
    if error.code == "context_length_exceeded":  # clients recognise the error by Google's words
        words = "the input token count exceeds the maximum number of tokens allowed"
        return f"{words}: {error.message}"
    return error.message
