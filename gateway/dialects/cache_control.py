"""The rules for breakpoints in Anthropic's form (`cache_control`), for all dialects.

A request has at most four breakpoints. Breakpoints for an hour come before breakpoints for five
minutes. A breakpoint covers the prompt up to its content block: tools first, then the system, then
turns.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import CacheControl

MOST = 4
FIVE_MINUTES, AN_HOUR = 300.0, 3600.0
_SECONDS = {None: FIVE_MINUTES, "5m": FIVE_MINUTES, "1h": AN_HOUR}


class Marked(NamedTuple):
    """A breakpoint, and the name of its field in errors."""

    param: str
    control: CacheControl


def seconds_of(control: CacheControl) -> float:
    """Return how many seconds a breakpoint's prefix stays in the cache after each use."""
    return _SECONDS[control.ttl]


def check(marks: Sequence[Marked], most: int = MOST) -> None:
    """Raise BadRequest for more than `most` breakpoints, or for `1h` after `5m`."""
    if len(marks) > most:
        raise BadRequest(
            f"at most {most} blocks may have `cache_control`, and {len(marks)} have",
            param=marks[most].param,
        )
    shortest = AN_HOUR
    for param, control in marks:
        if seconds_of(control) > shortest:
            raise BadRequest(
                "a `cache_control` with a `ttl` of 1h must not come after one of 5m",
                param=f"{param}.ttl",
            )
        shortest = seconds_of(control)


def check_text(text: str, param: str) -> None:
    """Raise BadRequest for a breakpoint on an empty text."""
    if not text:
        raise BadRequest("an empty text cannot be marked", param=param)
