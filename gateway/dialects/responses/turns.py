"""From items to the messages of a chat.

The assistant's items are parts of one turn: reasoning, then text, then calls. An item that would
have to stand before what is there begins another turn.

Knows: what a turn may hold. Does not know: templates, or where items come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.dialects.responses.items import Placed, text_of
from gateway.dialects.responses.schema import Item
from gateway.errors import BadRequest
from gateway.http.body import check_inner
from gateway.prompts.chat_json import arguments_of
from gateway.prompts.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult


def messages_of(instructions: str | None, items: Sequence[Placed]) -> tuple[Message, ...]:
    """The chat; BadRequest names the field that is wrong."""
    system = [Message("system", (Text(instructions),))] if instructions else []
    return (*system, *_said(items))


def _said(items: Sequence[Placed]) -> Iterator[Message]:
    turn = _Turn()
    names: dict[str, str] = {}  # of the functions called so far, by the call's id
    for placed in items:
        item = placed.item
        if _is_assistants(item):
            if not turn.can_take(item):
                yield from turn.taken()
            turn.add(placed)
            if item.call_id is not None:
                names[item.call_id] = item.name or ""
            continue
        yield from turn.taken()
        yield _result(placed, names) if item.type == "function_call_output" else _told(item)
    yield from turn.taken()


def _is_assistants(item: Item) -> bool:
    return item.role == "assistant" or item.type in ("function_call", "reasoning")


def _told(item: Item) -> Message:
    # `developer` is the newer name for the same role; templates know the older one.
    role = "user" if item.role == "user" else "system"
    return Message(role, (Text(text_of(item.content)),))


def _result(placed: Placed, names: dict[str, str]) -> Message:
    item, call_id = placed.item, placed.item.call_id or ""
    if call_id not in names:
        raise BadRequest(
            "no call before this output has its `call_id`", param=f"{placed.param}.call_id"
        )
    return Message("tool", (ToolResult(text_of(item.output), call_id),), names[call_id] or None)


@dataclass(slots=True)
class _Turn:
    """What the assistant has said since somebody else did."""

    reasoning: str = ""
    text: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def can_take(self, item: Item) -> bool:
        if item.type == "function_call":
            return True
        return self.text is None and not self.calls

    def add(self, placed: Placed) -> None:
        item = placed.item
        match item.type:
            case "function_call":
                param = f"{placed.param}.arguments"
                check_inner((item.arguments or "").encode(), param)
                arguments = arguments_of(item.arguments, param)
                self.calls.append(ToolCall(item.name or "", arguments, item.call_id))
            case "reasoning":
                self.reasoning += text_of(item.content or item.summary)
            case _:
                self.text = text_of(item.content, "")

    def taken(self) -> Iterator[Message]:
        """The turn as a message, if there is one; it is empty afterwards."""
        reasoning, text, calls = self.reasoning, self.text, self.calls
        self.reasoning, self.text, self.calls = "", None, []
        if text is None and not calls:
            return  # reasoning alone is no turn
        thought: list[Part] = [Reasoning(reasoning)] if reasoning else []
        yield Message("assistant", (*thought, Text(text or ""), *calls))
