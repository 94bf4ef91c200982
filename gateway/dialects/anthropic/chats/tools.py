"""The conversion of Anthropic's tools into template tools and callable tools.

A request declares tools, and system messages in the conversation add and remove tools. The template
shows all declared tools, also tools that are removed later, so that the beginning of the prompt
does not change. Each change is shown as a text in its place. The model may call the tools that are
in force at the end of the conversation.

Knows: `tools`, and their changes. Does not know: `tool_choice` (`answer_form.py`), or how a model
writes calls (`gateway/turn_formats`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.dialects.anthropic.chats.known_tools import described
from gateway.dialects.anthropic.content.blocks import ToolAdditionBlock, ToolRemovalBlock
from gateway.dialects.anthropic.content.tool_params import (
    McpToolReference,
    McpToolsetReference,
    ToolDefinition,
    ToolParam,
    ToolReference,
)
from gateway.dialects.anthropic.schema import MAX_TOOLS, PromptRequest
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_tools import NOT_RUN
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.offered_tools import PassedOver, added_text
from gateway.turn_formats.turn_format import ToolSpec

Change = ToolAdditionBlock | ToolRemovalBlock

_STAYS_TEXT = "what is said between calls comes as text, not as thinking"


@dataclass(frozen=True, slots=True)
class RequestTools:
    """A request's declared tools, the tools that may be called, and the tools that its turns
    define.
    """

    declared: tuple[tuple[int, ToolParam], ...]  # tools that the model is shown, with their indices
    in_force: tuple[ToolSpec, ...]  # tools that may be called
    later: tuple[ToolSpec, ...]  # tools that the conversation has defined
    passed_over: tuple[PassedOver, ...]

    @classmethod
    def of(cls, wire: PromptRequest) -> RequestTools:
        """Read the tools of `wire`; raise BadRequest for a tool without a name, with another tool's
        name, or unknown.
        """
        shown, passed_over = [], [*_servers(wire), *_updates(wire)]
        for place, tool in enumerate(wire.tools or ()):
            found = described(tool)
            if found is None:
                kind = (tool.type or "")[:64]
                passed_over.append(PassedOver(f"tools[{place}]", kind, NOT_RUN))
            else:
                shown.append((place, found))
        changes = _Changes(_specs(shown))
        for where, block in _changes_in(wire):
            changes.apply(block, where)
        passed_over += changes.passed_over
        in_force = tuple(changes.in_force.values())
        return cls(tuple(shown), in_force, tuple(changes.defined), tuple(passed_over))

    def forms(self, before: int | None = None) -> list[Tool] | None:
        """Write the first `before` tools (None: all) for chat templates; None if there are no
        tools.
        """
        tools = [one for place, one in self.declared if before is None or place < before]
        return [form_of(one) for one in tools] or None


def form_of(tool: ToolParam) -> Tool:
    """Write a tool in OpenAI's form, which chat templates take."""
    function = {"name": tool.name, "description": tool.description or ""}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def change_text(block: Change) -> str | None:
    """Write the text of a tool change for the model; None if the client cannot run the tool."""
    match block.tool:
        case ToolReference(name=name) if isinstance(block, ToolAdditionBlock):
            return f'The tool "{name}" is available from here on.'
        case ToolReference(name=name):
            return f'The tool "{name}" is no longer available.'
        case ToolDefinition(definition=tool):
            found = described(tool)
            return None if found is None else added_text([form_of(found)])
        case McpToolReference() | McpToolsetReference():
            return None


def _servers(wire: PromptRequest) -> Iterator[PassedOver]:
    if wire.mcp_servers:
        yield PassedOver("mcp_servers", "mcp", NOT_RUN)


def _updates(wire: PromptRequest) -> Iterator[PassedOver]:
    """If the request asks for `thinking` of the type `between_tools`, yield a note that it is
    ignored.
    """
    if wire.thinking is not None and wire.thinking.type == "between_tools":
        yield PassedOver("thinking.type", "between_tools", _STAYS_TEXT)


def _specs(tools: Sequence[tuple[int, ToolParam]]) -> dict[str, ToolSpec]:
    specs: dict[str, ToolSpec] = {}
    for place, tool in tools:
        spec = _spec(tool, f"tools[{place}]")
        if spec.name in specs:
            raise BadRequest("another tool has this name", param=f"tools[{place}].name")
        specs[spec.name] = spec
    return specs


def _spec(tool: ToolParam, where: str) -> ToolSpec:
    if tool.name is None:
        raise _missing(f"{where}.name")
    if tool.input_schema is None:
        raise _missing(f"{where}.input_schema")
    return ToolSpec(tool.name, tool.input_schema, bool(tool.strict))


def _missing(param: str) -> BadRequest:
    return BadRequest(f"`{param}` is missing", code="missing_required_parameter", param=param)


def _changes_in(wire: PromptRequest) -> Iterator[tuple[str, Change]]:
    for place, turn in enumerate(wire.messages):
        for number, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
            if isinstance(block, ToolAdditionBlock | ToolRemovalBlock):
                yield f"messages[{place}].content[{number}].tool", block


class _Changes:
    """The tools in force, to which the conversation's additions and removals are applied."""

    def __init__(self, declared: dict[str, ToolSpec]) -> None:
        self.known = dict(declared)
        self.in_force = dict(declared)
        self.defined: list[ToolSpec] = []
        self.passed_over: list[PassedOver] = []

    def apply(self, block: Change, where: str) -> None:
        """Apply a tool change; raise BadRequest for an undefined tool, and for too many tools."""
        match block.tool:
            case ToolReference(name=name):
                if name not in self.known:
                    raise BadRequest(
                        "no tool of this name is defined before it",
                        code="tool_reference_unresolved",
                        param=f"{where}.name",
                    )
                if isinstance(block, ToolRemovalBlock):
                    self.in_force.pop(name, None)
                else:
                    self.in_force[name] = self.known[name]
            case ToolDefinition(definition=tool):
                self._define(tool, f"{where}.definition")
            case McpToolReference() | McpToolsetReference():
                self.passed_over.append(PassedOver(where, "mcp", NOT_RUN))
        if len(self.in_force) > MAX_TOOLS:
            raise BadRequest(
                f"there are more than {MAX_TOOLS} tools",
                code="available_tools_limit_exceeded",
                param=where,
            )

    def _define(self, tool: ToolParam, where: str) -> None:
        found = described(tool)
        if found is None:
            self.passed_over.append(PassedOver(where, (tool.type or "")[:64], NOT_RUN))
            return
        spec = _spec(found, where)
        self.known[spec.name] = self.in_force[spec.name] = spec
        self.defined.append(spec)
