"""The conversion of items to the messages of a chat.

Adjacent items of the assistant are parts of one turn: reasoning, then one text, then calls. An item
that does not fit in this order begins another turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.dialects.responses.input_items.client_tools import (
    CLIENT_CALLS,
    CLIENT_OUTPUTS,
    arguments_in,
    output_text,
)
from gateway.dialects.responses.input_items.hosted_items import HOSTED, hosted_call
from gateway.dialects.responses.input_items.items import (
    ADDED_TOOLS,
    CALLS,
    FOUND_TOOLS,
    OUTPUTS,
    Placed,
    text_of,
)
from gateway.dialects.responses.input_items.tool_entries import SEARCH
from gateway.dialects.responses.schema import Item
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import arguments_of, check_spelled
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from gateway.prompts.chats.offered_tools import added_text, free_arguments

ToolsInPlace = Mapping[int, Sequence[Tool]]


def messages_of(
    instructions: str | None, items: Sequence[Placed], in_place: ToolsInPlace
) -> tuple[Message, ...]:
    """Convert the items into messages; raise BadRequest for a wrong field.

    `in_place` has the tools that are shown at an item's place. These tools appear in a system text,
    or in the result of a search for tools.
    """
    check_spelled((placed.item.arguments for placed in items), "input")
    said = _said(items, in_place)
    if not instructions:
        return tuple(said)
    return (Message("system", (Text(instructions),), param="instructions"), *said)


def _said(items: Sequence[Placed], in_place: ToolsInPlace) -> Iterator[Message]:
    turn = _Turn()
    names: dict[str, str] = {}
    for place, placed in enumerate(items):
        item, found = placed.item, in_place.get(place, ())
        if item.type == ADDED_TOOLS and not found:
            continue
        if item.type in HOSTED:
            yield from turn.hosted(placed)
            continue
        if _is_assistants(item):
            if not turn.can_take(item):
                yield from turn.taken()
            turn.add(placed)
            if item.type in CALLS:
                names[item.call_id or ""] = _name(item)
            continue
        yield from turn.taken()
        if item.type in OUTPUTS:
            yield _result(placed, names, found)
        else:
            yield _told(placed, found)
    yield from turn.taken()


def _is_assistants(item: Item) -> bool:
    return item.role == "assistant" or item.type in (*CALLS, "reasoning")


def _name(item: Item) -> str:
    tool = CLIENT_CALLS.get(item.type or "")
    if tool is not None:
        return tool.kind
    return SEARCH if item.type == "tool_search_call" else item.name or ""


def _told(placed: Placed, tools: Sequence[Tool]) -> Message:
    # Templates know the role `developer` by its older name, `system`.
    role = "user" if placed.item.role == "user" else "system"
    text = added_text(tools) if tools else text_of(placed.item.content)
    return Message(role, (Text(text),), param=placed.param)


def _result(placed: Placed, names: dict[str, str], tools: Sequence[Tool]) -> Message:
    item, call_id = placed.item, placed.item.call_id or ""
    if call_id not in names:
        raise BadRequest(
            "no call before this output has its `call_id`", param=f"{placed.param}.call_id"
        )
    if item.type == FOUND_TOOLS:
        text = added_text(tools)
    else:
        text = output_text(item) if item.type in CLIENT_OUTPUTS else text_of(item.output)
    return Message("tool", (ToolResult(text, call_id),), names[call_id] or None, placed.param)


def _arguments(given: str | dict[str, Any] | None, placed: Placed) -> dict[str, Any]:
    return arguments_of(given, f"{placed.param}.arguments")


@dataclass(slots=True)
class _Turn:
    reasoning: list[str] = field(default_factory=list)
    text: str | None = None
    calls: list[ToolCall] = field(default_factory=list)
    param: str = ""

    def can_take(self, item: Item) -> bool:
        if item.type in CALLS:
            return True
        return self.text is None and not self.calls

    def add(self, placed: Placed) -> None:
        item = placed.item
        self.param = self.param or placed.param
        match item.type:
            case "function_call" | "tool_search_call":
                arguments = _arguments(item.arguments, placed)
                self.calls.append(ToolCall(_name(item), arguments, item.call_id))
            case "local_shell_call" | "shell_call" | "apply_patch_call":
                self.calls.append(ToolCall(_name(item), arguments_in(item), item.call_id))
            case "custom_tool_call":
                arguments = free_arguments(item.input or "")
                self.calls.append(ToolCall(_name(item), arguments, item.call_id))
            case "reasoning":
                self.reasoning.append(text_of(item.content or item.summary))
            case _:
                self.text = text_of(item.content, "")

    def hosted(self, placed: Placed) -> Iterator[Message]:
        """Add a hosted tool's call and its result, and end the turn."""
        call = hosted_call(placed.item)
        if call is None:
            return
        self.param = self.param or placed.param
        call_id = placed.item.id or ""
        self.calls.append(ToolCall(call.name, _arguments(call.arguments, placed), call_id))
        yield from self.taken()
        yield Message("tool", (ToolResult(call.result, call_id),), call.name, placed.param)

    def taken(self) -> Iterator[Message]:
        """Yield the turn as a message if it has text or calls. Then empty the turn."""
        reasoning, text, calls, param = self.reasoning, self.text, self.calls, self.param
        self.reasoning, self.text, self.calls, self.param = [], None, [], ""
        if text is None and not calls:
            return  # reasoning alone is dropped, since a turn needs text or calls
        thought: list[Part] = [Reasoning("".join(reasoning))] if any(reasoning) else []
        yield Message("assistant", (*thought, Text(text or ""), *calls), param=param)
