"""The rules for breakpoints in Anthropic's form (`cache_control`), in all dialects that take them.

A request has at most four breakpoints, and breakpoints for an hour come before breakpoints for five
minutes. A breakpoint covers the tools, then the system, then the turns, up to the content block
that has the breakpoint.

Knows: number, order and lifetimes of breakpoints. Does not know: where a dialect has breakpoints,
or the prefix that each covers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import CacheControl

MOST = 4  # maximum number of breakpoints of a request
FIVE_MINUTES, AN_HOUR = 300.0, 3600.0
_SECONDS = {None: FIVE_MINUTES, "5m": FIVE_MINUTES, "1h": AN_HOUR}


class Marked(NamedTuple):
    """A breakpoint, and the name of its field in errors."""

    param: str
    control: CacheControl


def seconds_of(control: CacheControl) -> float:
    """Return for how many seconds the prefix up to a breakpoint is retained after each use."""
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
