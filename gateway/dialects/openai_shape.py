"""The common part of OpenAI's APIs: errors, headers, tiers of service, and details of usage."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.errors import BudgetSpent, GatewayError, LimitReached
from gateway.http.error_dialect import RenderedError
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import Allowance, RateStatus
from gateway.views import TokensByTier

# OpenAI's tiers, and Groq's `on_demand` and `performance`, since Groq's clients also call other
# servers.
ServiceTier = Literal[
    "auto", "default", "flex", "scale", "priority", "fast", "ultrafast", "on_demand", "performance"
]
Penalty = Annotated[float, Meta(ge=-2, le=2)]

# names of the header fields that answers may have
EXPOSED = (
    *("x-request-id", "openai-processing-ms", "x-should-retry"),
    *(
        f"x-ratelimit-{part}-{what}"
        for part in ("limit", "remaining", "reset")
        for what in ("requests", "tokens")
    ),
)

_TYPES = {403: "permission_error", 429: "requests"}


def cached_by_tier(usage: Usage) -> TokensByTier | UnsetType:
    """Count the cached tokens by cache tier; return UNSET if the caller may not see tiers."""
    return UNSET if usage.tiers is None else TokensByTier.of(usage.tiers, usage.state_tier)


class CacheWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens written to the cache, by the time for which they are retained after each use.

    OpenAI has the first two counts. The other counts are left out if they are 0.
    """

    ttl_30m_tokens: int
    ttl_12h_tokens: int
    ttl_5m_tokens: int | UnsetType = UNSET
    ttl_1h_tokens: int | UnsetType = UNSET
    ttl_24h_tokens: int | UnsetType = UNSET

    @classmethod
    def of(cls, usage: Usage) -> CacheWrites | UnsetType:
        """Count the tokens that a request wrote to the cache; UNSET without a breakpoint."""
        if not usage.written:
            return UNSET
        written = usage.written_by_seconds()
        return cls(
            ttl_30m_tokens=written.get(1800.0, 0),
            ttl_12h_tokens=written.get(12 * 3600.0, 0),
            ttl_5m_tokens=written.get(300.0) or UNSET,
            ttl_1h_tokens=written.get(3600.0) or UNSET,
            ttl_24h_tokens=written.get(24 * 3600.0) or UNSET,
        )


class ErrorBody(msgspec.Struct, frozen=True):
    """An error's fields. `code` is stable, and `message` is for people."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(ErrorBody, frozen=True, kw_only=True):
    """The body of an error answer.

    Mistral's, Cerebras' and Cohere's clients read the fields beside `error`.
    """

    object: Literal["error"] = "error"
    error: ErrorBody


def error_reply(error: GatewayError, param: str | None) -> RenderedError:
    """Write the answer for `error`. If a limit was hit, headers show the remaining limits.

    `param` is the dialect's name of the wrong field.
    """
    headers = limit_headers(error.standing) if isinstance(error, LimitReached) else {}
    if error.status == 429 and error.retry_after_s is None:
        # without this header, OpenAI's clients retry every 429
        headers["x-should-retry"] = "false"
    return RenderedError(error.status, headers, msgspec.json.encode(error_body(error, param)))


def error_body(error: GatewayError, param: str | None) -> ErrorReply:
    """Write the error body for `error`."""
    body = ErrorBody(_message(error), _type(error), param, error.code)
    # Cerebras' clients refuse a null in the place of the field's name
    return ErrorReply(body.message, body.type, body.param or "", body.code, error=body)


def head_fields(request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
    """Write the headers with the request's id and time, under OpenAI's names."""
    return [
        (b"x-request-id", request_id.encode()),
        (b"openai-processing-ms", f"{spent_ms:.0f}".encode()),
    ]


def limit_headers(standing: RateStatus) -> dict[str, str]:
    """Write a tenant's remaining rate limits as OpenAI's `x-ratelimit-*` headers."""
    return _left_of("requests", standing.requests) | _left_of("tokens", standing.tokens)


def _message(error: GatewayError) -> str:
    # LangChain and others look for this code in the text of the client's error, which
    # contains only the message
    if error.code == "context_length_exceeded":
        return f"{error.message} ({error.code})"
    return error.message


def _type(error: GatewayError) -> str:
    if isinstance(error, BudgetSpent):
        return error.code
    if isinstance(error, LimitReached) and error.reason == "tokens":
        return "tokens"
    default = "server_error" if error.status >= 500 else "invalid_request_error"
    return _TYPES.get(error.status, default)


def _left_of(what: str, allowance: Allowance | None) -> dict[str, str]:
    if allowance is None:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(allowance.limit),
        f"x-ratelimit-remaining-{what}": str(allowance.remaining),
        f"x-ratelimit-reset-{what}": _duration(allowance.reset_s),
    }


def _duration(seconds: float) -> str:
    """Write seconds as `120ms`, `7s` or `6m0s`, rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    return f"{whole // 60}m{whole % 60}s" if whole >= 60 else f"{whole}s"
