"""The gateway's errors, independent of any wire format.

GatewayError
 |- BadRequest                400  a bound, a type, a value; `param` names the field
 |   `- AnswerTooLarge        400  the answer takes more memory than the bound
 |- Unauthenticated           401  no key, or a malformed, unknown, revoked or expired key
 |- Forbidden                 403  the key is good, its tenant is disabled
 |- NotFound                  404  a route, a model, a tenant, a key
 |- MethodNotAllowed          405
 |- RequestTimeout            408  the request does not come whole in time
 |   `- AnswerNotRead         408  the client leaves too much of the answer unread
 |- Conflict                  409  the name is taken
 |- BodyTooLarge              413
 |- UriTooLong                414
 |- UnsupportedEncoding       415
 |- UnsupportedType           415  the body's type is missing, or is not the route's
 |- HeadTooLarge              431  the head, the chunk extensions or the trailers
 |- TooManyRequests           429  retry after `retry_after_s`
 |   `- LimitReached          429  a limit of the tenant; `standing` has the numbers
 |- BudgetSpent               429  until the budget's period is over or the budget is raised
 `- Unavailable               503  the engine is away; retry after `retry_after_s`
     |- StateLost             503  the state is damaged, gone or exchanged, until it is repaired
     `- StateDiskFull         503  there is no room to store the request's data

Only `from_engine` translates the engine's errors (`engine.errors`) to these.
Messages never quote prompt text or keys, and codes are the gateway's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import (
    AdapterNotServed,
    EngineError,
    EngineUnavailable,
    NotCarried,
    PromptTooLong,
    QueueFull,
    RequestRefused,
    cut,
)
from gateway.tenant_limits import RateStatus, Reason

# maximum number of characters of a field's path, which may contain a client's own names
_MOST_NAMED = 200


class GatewayError(Exception):
    """The base of every error that a client is answered with.

    `message` and `param` are cut to a length that fits answers, logs and memory.
    """

    status = 500
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.message = cut(message)
        super().__init__(self.message)
        self.code = code or type(self).code
        self.param = None if param is None else cut(param, _MOST_NAMED)
        self.retry_after_s = retry_after_s


class BadRequest(GatewayError):
    """The error of a request that must be changed before it can be answered."""

    status = 400
    code = "invalid_value"


class AnswerTooLarge(BadRequest):
    """The error of an answer that is sent whole and takes too much memory."""

    code = "answer_too_large"

    def __init__(self) -> None:
        super().__init__(
            "this answer is too large to be sent whole; stream it, or ask for fewer choices, "
            "tokens or log-probabilities"
        )


class Unauthenticated(GatewayError):
    """The error of a request without a valid key."""

    status = 401
    code = "invalid_api_key"


class Forbidden(GatewayError):
    """The error of a request with a valid key that does not permit the request."""

    status = 403
    code = "tenant_disabled"


class NotFound(GatewayError):
    """The error of an unknown route, model, tenant or key."""

    status = 404
    code = "not_found"


class MethodNotAllowed(GatewayError):
    """The error of a route that exists, but not with the request's method."""

    status = 405
    code = "method_not_allowed"


class RequestTimeout(GatewayError):
    """The error of a request that did not arrive whole in time."""

    status = 408
    code = "request_timeout"


class AnswerNotRead(RequestTimeout):
    """The error of a client that leaves more of its stream unread than is allowed."""

    code = "answer_not_read"

    def __init__(self) -> None:
        super().__init__("too much of this answer was not read yet; what is left of it is lost")


class Conflict(GatewayError):
    """The error of a name that is already taken."""

    status = 409
    code = "conflict"


class BodyTooLarge(GatewayError):
    """The error of a body with too many bytes."""

    status = 413
    code = "request_too_large"


class UriTooLong(GatewayError):
    """The error of a too long request line or query."""

    status = 414
    code = "uri_too_long"


class UnsupportedEncoding(GatewayError):
    """The error of a body whose encoding the gateway does not read."""

    status = 415
    code = "unsupported_encoding"


class UnsupportedType(GatewayError):
    """The error of a body of another type than the route takes."""

    status = 415
    code = "unsupported_media_type"


class HeadTooLarge(GatewayError):
    """The error of a request whose headers, chunk extensions or trailers are too large."""

    status = 431
    code = "head_too_large"


class TooManyRequests(GatewayError):
    """The error of a full queue or an exhausted limit.

    The message has the delay in OpenAI's words too, since some clients read no header.
    """

    status = 429
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        wait = "" if retry_after_s is None else f"; please try again in {retry_after_s:.3f}s"
        super().__init__(f"{message}{wait}", code=code, retry_after_s=retry_after_s)


class LimitReached(TooManyRequests):
    """The error of a tenant that has reached a rate limit or its limit of concurrent requests.

    If `retry_after_s` is None the request can never pass, but a smaller request can.
    """

    def __init__(
        self, message: str, *, reason: Reason, standing: RateStatus, retry_after_s: float | None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason
        self.standing = standing


class BudgetSpent(GatewayError):
    """The error of a request that the tenant's remaining budget does not cover."""

    status = 429
    code = "insufficient_quota"


class Unavailable(GatewayError):
    """The error of a request that no engine can take, or whose engine broke."""

    status = 503
    code = "overloaded"


class StateLost(Unavailable):
    """The error of state that is damaged, gone or exchanged. The operator must repair the state."""

    code = "state_damaged"

    def __init__(self, code: str) -> None:
        super().__init__(
            "the gateway's state is damaged or missing; its operator must mend it",
            code=code,
            retry_after_s=30.0,
        )


class StateDiskFull(Unavailable):
    """The error of a full disk under the state. The operator must free space."""

    code = "disk_full"

    def __init__(self) -> None:
        super().__init__(
            "the gateway's disk is full, so this cannot be stored; its operator must make room",
            retry_after_s=5.0,
        )


def shutting_down() -> Unavailable:
    """Make the error of a request that the gateway's shutdown cuts off."""
    return Unavailable("the gateway is shutting down", code="shutting_down", retry_after_s=1.0)


def from_engine(error: EngineError) -> GatewayError:
    """Convert an engine's error to the gateway's error. No other function does this."""
    if isinstance(error, PromptTooLong):
        return BadRequest(error.message, code="context_length_exceeded")
    if isinstance(error, AdapterNotServed):
        return BadRequest(error.message, code=error.code)
    if isinstance(error, NotCarried):
        return Conflict(error.message, code=error.code)
    if isinstance(error, RequestRefused):
        return BadRequest(error.message, param=error.param)
    if isinstance(error, QueueFull):
        return TooManyRequests(error.message, retry_after_s=error.retry_after_s or 1.0)
    if isinstance(error, EngineUnavailable):
        return Unavailable(error.message, retry_after_s=error.retry_after_s or 2.0)
    return Unavailable(error.message, code=error.code, retry_after_s=2.0)


@contextmanager
def refusing() -> Iterator[None]:
    """Convert engine errors that are raised in this context to the gateway's errors."""
    try:
        yield
    except EngineError as error:
        raise from_engine(error) from error
