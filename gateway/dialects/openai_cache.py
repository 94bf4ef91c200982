"""OpenAI's prompt cache fields, common to chats, text completions and responses.

    prompt_cache_retention   how long the prompt is retained: "in_memory" 5 minutes, "24h" a day
    prompt_cache_options     the prompt is retained for `ttl`, by default half an hour; in the mode
                             "explicit" it is retained only up to its breakpoints
    prompt_cache_breakpoint  on a content block: the prompt up to the block is retained, for the
                             breakpoint's own `ttl` if that is set
    prompt_cache_key         chooses among OpenAI's machines; the key has no effect here

Clients written for Anthropic's models send `cache_control` in OpenAI's chats
(`openai/requests/marks.py`).
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct

from gateway.dialects.cache_control import MOST, Marked, check, seconds_of
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import Lifetime
from gateway.prompts.generation_request import CacheMark, ChatPrompt

_RETENTION = {"in_memory": 300.0, "in-memory": 300.0, "24h": 24 * 3600.0}
_SECONDS: dict[Lifetime, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 12 * 3600.0}

Retention = Literal["in_memory", "in-memory", "24h"]
Place = TypeVar("Place")  # a breakpoint's place, in a dialect's own terms
CacheKey = Annotated[str, Meta(max_length=64)]  # OpenAI's limit


class PromptCacheOptions(Struct, frozen=True, kw_only=True):
    """The option to retain the whole prompt or its prefixes up to breakpoints."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Lifetime | None = None


class Breakpoint(NamedTuple):
    """The chat up to a breakpoint (None: the whole chat), and the breakpoint's lifetime, if any."""

    chat: ChatPrompt | None
    ttl: Lifetime | None


def marks_of(
    retention: Retention | None,
    options: PromptCacheOptions | None,
    breakpoints: Sequence[Breakpoint] = (),
) -> tuple[CacheMark, ...]:
    """Return the prefixes to retain, in order.

    If there are too many `breakpoints`, the first of them are ignored.
    """
    ttl = None if options is None else options.ttl
    is_explicit = options is not None and options.mode == "explicit"
    has_end = (retention is not None or options is not None) and not is_explicit
    most = MOST - has_end
    marks = [
        CacheMark(_seconds(retention, one.ttl or ttl), one.chat) for one in breakpoints[-most:]
    ]
    return (*marks, CacheMark(_seconds(retention, ttl))) if has_end else tuple(marks)


def _seconds(retention: Retention | None, ttl: Lifetime | None) -> float:
    """Return the longer of both lifetimes in seconds. OpenAI reads `ttl` as a minimum."""
    asked = [] if retention is None else [_RETENTION[retention]]
    if ttl is not None:
        asked.append(_SECONDS[ttl])
    return max(asked, default=_SECONDS["30m"])


def with_controls(
    marks: tuple[CacheMark, ...],
    controls: Sequence[tuple[Marked, Place]],
    covered: Callable[[Place], ChatPrompt | None],
    *,
    has_breakpoints: bool,
) -> tuple[CacheMark, ...]:
    """Put the breakpoints in `controls` before `marks`.

    `covered` returns the chat up to a breakpoint's place, or None for the whole chat. Raises
    BadRequest for breakpoints of both kinds, or for too many breakpoints.
    """
    if not controls:
        return marks
    if has_breakpoints:
        raise BadRequest(
            "`cache_control` and `prompt_cache_breakpoint` exclude each other",
            param=controls[0][0].param,
        )
    check([mark for mark, _ in controls], MOST - len(marks))
    return (
        *(CacheMark(seconds_of(mark.control), covered(place)) for mark, place in controls),
        *marks,
    )
