"""The messages of a chat, and their form for chat templates.

A message has parts. A part is a Struct whose fields are strings, or JSON of strings. The fields all
come from the request, so a control token in a part is plain text (`content_marks.py`). Only the
assistant's text may contain markup (`<think>`).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

_SHORT = 9


class Text(Struct, frozen=True):
    """A text part, which every role may have."""

    text: str


class Reasoning(Struct, frozen=True):
    """The assistant's reasoning before its answer. Templates may leave it out."""

    text: str


class ToolCall(Struct, frozen=True):
    """A call made by the assistant. `arguments` are a JSON object."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class ToolResult(Struct, frozen=True):
    """The result of a call, the only part of its message."""

    text: str
    call_id: str


Part = Text | Reasoning | ToolCall | ToolResult


class Message(Struct, frozen=True):
    """A message of a chat. It has at most one part of each kind, but any number of calls.

    The dialect joins several texts into one. If texts were joined only for the template, they could
    form a control token.
    """

    role: str
    parts: tuple[Part, ...]
    name: str | None = None
    param: str = "messages"

    def __post_init__(self) -> None:
        kinds = [type(part) for part in self.parts if not isinstance(part, ToolCall)]
        if len(set(kinds)) < len(kinds) or {Text, ToolResult} <= set(kinds):
            raise ValueError("a message has two texts")


def template_form(message: Message) -> dict[str, Any]:
    """Convert `message` to the form for chat templates."""
    form: dict[str, Any] = {"role": message.role, "content": ""}
    if message.name is not None:
        form["name"] = message.name
    for part in message.parts:
        match part:
            case Text(text):
                form["content"] = text
            case Reasoning(text):
                form["reasoning_content"] = text
            case ToolResult(text, call_id):
                form |= {"content": text, "tool_call_id": call_id}
            case ToolCall():
                form.setdefault("tool_calls", []).append(_call_form(part))
    return form


def _call_form(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    form = {"type": "function", "function": function}
    return form if call.id is None else {"id": call.id, **form}


def with_short_ids(message: Message) -> Message:
    """Replace ids of calls by ids of nine letters or digits. Equal ids stay equal."""
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolCall(name, arguments, call_id):
                parts.append(ToolCall(name, arguments, _short(call_id or "")))
            case ToolResult(text, call_id):
                parts.append(ToolResult(text, _short(call_id)))
            case _:
                parts.append(part)
    return replace(message, parts=tuple(parts))


def _short(call_id: str) -> str:
    if len(call_id) == _SHORT and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode()).hexdigest()[:_SHORT]


def with_numbered_ids(messages: Iterable[Message], *, in_turns: bool) -> Iterator[Message]:
    """Replace ids of calls by `functions.NAME:NUMBER`, in the calls and in their results.

    Numbers count the calls of the chat, or the calls of each message if `in_turns`.
    """
    ids: dict[str | None, str] = {}
    number = 0
    for message in messages:
        number = 0 if in_turns else number
        parts: list[Part] = []
        for part in message.parts:
            match part:
                case ToolCall(name, arguments, call_id):
                    ids[call_id] = f"functions.{name}:{number}"
                    parts.append(ToolCall(name, arguments, ids[call_id]))
                    number += 1
                case ToolResult(text, call_id):
                    parts.append(ToolResult(text, ids.get(call_id, call_id)))
                case _:
                    parts.append(part)
        yield replace(message, parts=tuple(parts))


def stored_message(form: Mapping[str, Any]) -> Message:
    """Convert the template form `form` back to a message."""
    call_id, name = form.get("tool_call_id"), form.get("name")
    content, thought = form["content"], form.get("reasoning_content")
    part = Text(content) if call_id is None else ToolResult(content, call_id)
    calls = [
        ToolCall(one["function"]["name"], one["function"]["arguments"], one.get("id"))
        for one in form.get("tool_calls", ())
    ]
    reasoning = [] if thought is None else [Reasoning(thought)]
    return Message(form["role"], (*reasoning, part, *calls), name)
