"""The types of the engine's errors. The gateway renders an error in the API dialect of its caller.

EngineError
 |- RequestRefused          this request can never be served unchanged
 |   |- InvalidRequest      a bound or a type that admission should have caught
 |   |   `- InvalidGrammar  the grammar does not compile, or exceeds the bounds
 |   |- PromptTooLong       more tokens than the context or the pool holds
 |   |- AdapterNotServed    the LoRA adapter is not there, or of a kind that is not served
 |   |- NotCarried          a prefix that cannot be exported or imported
 |   |- PinTooLarge         more blocks than may be pinned in total
 |   `- ConstraintUnsatisfied  constraint and other parameters allow no next token
 |- NoRoomToPin             not now: pinned prefixes leave too few blocks
 |- QueueFull               not now: the bounded queue is full; retry later
 |- EngineUnavailable       not now: no engine is connected, or it is starting or draining
 `- EngineFailure           the engine broke while the request ran
     |- EngineDied          the process went away
     `- NumericFailure      the model produced NaN; the blocks are not kept

`code` is stable, because it crosses the link in `Failed.code`, and metrics count by it.

Elsewhere: HTTP statuses (`gateway.errors`).
"""

from __future__ import annotations

from collections.abc import Iterator

MOST_SAID = 1000  # maximum characters of an error's message, which may quote the request


def cut(text: str, most: int = MOST_SAID) -> str:
    """Shorten `text` to `most` characters: keep both ends, and insert how many were cut."""
    if len(text) <= most:
        return text
    gap = f" [{len(text) - most} characters more] "
    end = most // 4
    return text[: most - end - len(gap)] + gap + text[-end:]


class EngineError(Exception):
    """The base of all errors that the engine reports about one request."""

    code = "engine_error"
    param: str | None = None  # name of the wrong field of the request, if known

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        self.message = cut(message)
        super().__init__(self.message)
        self.retry_after_s = retry_after_s


class RequestRefused(EngineError):
    """An error: the request can never run."""

    code = "refused"


class InvalidRequest(RequestRefused):
    """An error: a value or a type that admission should have rejected."""

    code = "invalid_request"


class InvalidGrammar(InvalidRequest):
    """An error: the grammar is invalid, unsupported, too large or too slow."""

    code = "invalid_grammar"


class PromptTooLong(RequestRefused):
    """An error: the prompt has more tokens than the context or the pool holds."""

    code = "prompt_too_long"


class AdapterNotServed(RequestRefused):
    """An error: the LoRA adapter is absent, of another model, or of a kind that is not served."""

    code = "adapter_not_served"


class NotCarried(RequestRefused):
    """An error: the prefix cannot be exported or imported."""

    code = "prefix_not_carried"


class PinTooLarge(RequestRefused):
    """An error: the pin has more blocks than may be pinned in total."""

    code = "pin_too_large"


class ConstraintUnsatisfied(RequestRefused):
    """An error: the constraint and the other parameters allow no token."""

    code = "constraint_unsatisfied"


class NoRoomToPin(EngineError):
    """An error: too many blocks are pinned for a new pin."""

    code = "no_room_to_pin"


class QueueFull(EngineError):
    """An error: the bounded queue is full. Clients retry after `retry_after_s`."""

    code = "queue_full"


class EngineUnavailable(EngineError):
    """An error: the engine is not connected, or is starting or draining."""

    code = "engine_unavailable"


class EngineFailure(EngineError):
    """An error: the engine broke while the request ran."""

    code = "engine_failure"


class EngineDied(EngineFailure):
    """An error: the engine process went away while the request ran."""

    code = "engine_died"


class NumericFailure(EngineFailure):
    """An error: the output has NaN or infinity. The cache keeps nothing of the request."""

    code = "numeric_failure"


def _family(base: type[EngineError]) -> Iterator[type[EngineError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _family(kind)


_BY_CODE = {kind.code: kind for kind in _family(EngineError)}


def error_from_code(code: str, message: str, retry_after_s: float | None = None) -> EngineError:
    """Rebuild the error that `Failed` carried over the link.

    An unknown code gives an EngineError.
    """
    return _BY_CODE.get(code, EngineError)(message, retry_after_s=retry_after_s)
