"""The check that a template shows a chat whole and in order, made with the chat's shape.

A chat's *shape* is its roles and kinds of parts. The check renders another chat of this shape,
whose texts are unique short words. A word that is missing then stands for a hidden message. An
agent's loop repeats one kind of turn, and two rounds of the loop are enough.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult

_WORD = re.compile(r"zq\d+qz")
# Matches a part of a list, or a call's arguments, that a template has written as Python does.
_AS_PYTHON = re.compile(r"""\{['"]type['"]: ?['"](?:text|thinking)|\{'word': 'zq""")
_LONGEST_LOOP = 6
_BLANK = 16  # number of characters to which a longer blank text is cut
_NAME = "look_up"
_DESCRIPTION = "Looks a word up."

ONE_TOOL: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": _DESCRIPTION,
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": "The word."}},
                "required": ["word"],
            },
        },
    }
]


class TurnKind(NamedTuple):
    """The kind of a message: its role and the kinds of its parts."""

    role: str
    thinks: bool = False
    text: str | None = None  # "." for a text that is not blank; None: no text
    calls: int = 0
    call: int | None = None  # the number of the earlier call that this result answers
    named: bool = False


def kinds_of(messages: Iterable[Message]) -> list[TurnKind]:
    """Return the kind of each message."""
    numbers: dict[str | None, int] = {}  # numbers of the latest calls, by id
    kinds = []
    for message in messages:
        calls, thinks, text, call = [], False, None, None
        for part in message.parts:
            match part:
                case ToolCall():
                    calls.append(part.id)
                case Reasoning():
                    thinks = True
                case Text() | ToolResult():
                    text = "." if part.text.strip() else part.text[:_BLANK]
            if isinstance(part, ToolResult):
                call = numbers.get(part.call_id, -1)
        if calls:
            numbers = {one: number for number, one in reversed([*enumerate(calls)])}
        kinds.append(
            TurnKind(message.role, thinks, text, len(calls), call, message.name is not None)
        )
    return kinds


def shortened(kinds: Iterable[TurnKind]) -> tuple[TurnKind, ...]:
    """Shorten loops of calls to two rounds."""
    kept: list[TurnKind] = []
    for kind in kinds:
        kept.append(kind)
        for length in range(1, _LONGEST_LOOP + 1):
            if kept[-length:] == kept[-2 * length : -length] == kept[-3 * length : -2 * length]:
                del kept[-length:]
                break
    return tuple(kept)


def shape_of(kinds: Iterable[TurnKind]) -> list[Message]:
    """Make a chat of these kinds, in which every text is a different word."""
    words = (f"zq{number}qz" for number in range(1 << 62))
    first = calls = 0  # index of the latest message's first call; number of calls so far
    said: list[Message] = []
    for kind in kinds:
        parts: list[Part] = []
        if kind.thinks:
            parts.append(Reasoning(f"zr{next(words)[2:-2]}rz"))
        text = next(words) if kind.text == "." else kind.text
        if kind.call is not None:
            parts.append(ToolResult(text or "", _id(first, kind.call)))
        elif text is not None:
            parts.append(Text(text))
        if kind.calls:
            first, calls = calls, calls + kind.calls
            ids = [_id(first, number) for number in range(kind.calls)]
            parts += [ToolCall(_NAME, {"word": next(words)}, one) for one in ids]
        said.append(Message(kind.role, tuple(parts), _NAME if kind.named else None))
    return said


def _id(first: int, number: int) -> str:
    """Make an id of nine letters and digits. A negative `number` gives the id of no call."""
    return f"id{first + number:07}" if number >= 0 else "idUnknown"


def missed(text: str, fitted: Iterable[Message]) -> str | None:
    """Find the first word of a shape that `text` lacks, repeats or misplaces, or return None."""
    wanted = [word for message in fitted for word in words_of(message)]
    found = _WORD.findall(text)
    if found == wanted:
        return None
    pairs = zip_longest(wanted, found)
    return next(want or has for want, has in pairs if want != has)


def is_whole(text: str, fitted: Sequence[Message]) -> bool:
    """Return whether `text` has all words of `fitted` once, in order, and no Python."""
    return missed(text, fitted) is None and not _AS_PYTHON.search(text)


def shows_tool(text: str) -> bool:
    """Return whether `text` describes `ONE_TOOL`, and does not just call it."""
    return _DESCRIPTION in text


def words_of(message: Message) -> Iterator[str]:
    """Yield the words of a shape's message that must be shown: all words except thoughts."""
    for part in message.parts:
        yield from _WORD.findall(
            part.arguments["word"] if isinstance(part, ToolCall) else part.text
        )


def thoughts_of(messages: Sequence[Message]) -> list[str]:
    """List the thoughts in a shape."""
    parts = (part for message in messages for part in message.parts)
    return [part.text for part in parts if isinstance(part, Reasoning)]
