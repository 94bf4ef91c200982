"""What can go wrong in the engine, as types; the gateway renders them in its caller's dialect.

EngineError
 |- RequestRefused          this request can never be served as it is
 |   |- InvalidRequest      a bound or a type that admission should have caught
 |   |- PromptTooLong       more tokens than the context or the pool holds
 |   `- PinTooLarge         more blocks than may be pinned, even alone
 |- NoRoomToPin             not now: what is pinned already leaves too few blocks
 |- QueueFull               not now: the bounded queue is full; retry later
 |- EngineUnavailable       not now: no engine is connected, or it is starting or draining
 `- EngineFailure           the engine broke while the request ran
     |- EngineDied          the process went away
     `- NumericFailure      the model produced NaN; the blocks are not kept

`code` is stable: it crosses the link in `Failed.code`, and metrics count by it.

Knows: codes, and which error a code stands for. Does not know: statuses of HTTP (`gateway.errors`).
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine reports about one request."""

    code = "engine_error"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class RequestRefused(EngineError):
    """This request can never run as it is."""

    code = "refused"


class InvalidRequest(RequestRefused):
    """A bound or a type that admission should have caught."""

    code = "invalid_request"


class PromptTooLong(RequestRefused):
    """More tokens than the context or the pool holds."""

    code = "prompt_too_long"


class PinTooLarge(RequestRefused):
    """More blocks than may be pinned, even if nothing else were."""

    code = "pin_too_large"


class NoRoomToPin(EngineError):
    """What is pinned already leaves too few blocks; unpin something first."""

    code = "no_room_to_pin"


class QueueFull(EngineError):
    """The bounded queue is full; retry after `retry_after_s`."""

    code = "queue_full"


class EngineUnavailable(EngineError):
    """No engine is connected, or it is starting or draining."""

    code = "engine_unavailable"


class EngineFailure(EngineError):
    """The engine broke while the request ran."""

    code = "engine_failure"


class EngineDied(EngineFailure):
    """The engine process went away while the request ran."""

    code = "engine_died"


class NumericFailure(EngineFailure):
    """The model produced NaN or infinity; nothing of this request is kept in the cache."""

    code = "numeric_failure"


_BY_CODE: dict[str, type[EngineError]] = {
    error.code: error
    for error in (
        EngineError,
        RequestRefused,
        InvalidRequest,
        PromptTooLong,
        PinTooLarge,
        NoRoomToPin,
        QueueFull,
        EngineUnavailable,
        EngineFailure,
        EngineDied,
        NumericFailure,
    )
}


def error_from_code(code: str, message: str, retry_after_s: float | None = None) -> EngineError:
    """Rebuild the error that `Failed` carried over the link; an unknown code is an EngineError."""
    return _BY_CODE.get(code, EngineError)(message, retry_after_s=retry_after_s)
