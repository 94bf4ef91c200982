"""The conversion of Anthropic's tools into template tools and callable tools.

A request declares tools, and system messages add and remove tools during the conversation. The
template always shows all declared tools, so that the beginning of the prompt does not change. A
text in the conversation tells the model of each change. The model may call only the tools that
remain at the end of the conversation.

A tool with `defer_loading` is described where a turn first refers to it. Clients declare such a
tool only after their search has found it, so at the beginning it would change every prompt.

Elsewhere: how a model writes calls (`gateway/turn_formats`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.dialects.anthropic.chats.known_tools import described
from gateway.dialects.anthropic.content.blocks import (
    ToolAdditionBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
)
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

_HOSTED_SEARCH = "tool_search_tool"  # begins the types of Anthropic's searches among tools
_STAYS_TEXT = "what is said between calls comes as text, not as thinking"


@dataclass(frozen=True, slots=True)
class RequestTools:
    """The tools of a request: declared tools, callable tools, and tools that its turns define."""

    declared: tuple[tuple[int, ToolParam], ...]  # shown tools, each with its index in the request
    deferred: Mapping[str, ToolParam]  # by name; described where a turn first refers to the tool
    in_force: tuple[ToolSpec, ...]  # callable tools at the end of the conversation
    later: tuple[ToolSpec, ...]
    passed_over: tuple[PassedOver, ...]

    @classmethod
    def of(cls, wire: PromptRequest) -> RequestTools:
        """Read the tools of `wire`.

        Raises BadRequest for an unknown tool, a missing name, or a repeated name.
        """
        shown, passed_over = [], [*_servers(wire), *_updates(wire)]
        for place, tool in enumerate(wire.tools or ()):
            found = described(tool)
            if found is None:
                kind = (tool.type or "")[:64]
                passed_over.append(PassedOver(f"tools[{place}]", kind, NOT_RUN))
            else:
                shown.append((place, found))
        deferred = _deferred(shown, wire)
        changes = _Changes(_specs(shown), deferred)
        for where, block in _changes_in(wire):
            changes.apply(block, where)
        passed_over += changes.passed_over
        declared = tuple((place, one) for place, one in shown if one.name not in deferred)
        in_force = tuple(changes.in_force.values())
        return cls(declared, deferred, in_force, tuple(changes.defined), tuple(passed_over))

    def forms(self, before: int | None = None) -> list[Tool] | None:
        """Write the first `before` tools (None: all) for chat templates, or return None."""
        tools = [one for place, one in self.declared if before is None or place < before]
        return [form_of(one) for one in tools] or None


def form_of(tool: ToolParam) -> Tool:
    """Write a tool in OpenAI's form, which chat templates expect."""
    function = {"name": tool.name, "description": tool.description or ""}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def found_text(name: str, unshown: dict[str, ToolParam]) -> str:
    """Tell the model that it may call a tool; describe the tool if it is one of `unshown`.

    The tool is removed from `unshown`.
    """
    tool = unshown.pop(name, None)
    if tool is None:
        return f'The tool "{name}" is available from here on.'
    return added_text([form_of(tool)])


def change_text(block: Change, unshown: dict[str, ToolParam]) -> str | None:
    """Write a tool change as text for the model; return None if the client cannot run the tool."""
    match block.tool:
        case ToolReference(name=name) if isinstance(block, ToolAdditionBlock):
            return found_text(name, unshown)
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
    if wire.thinking is not None and wire.thinking.type == "between_tools":
        yield PassedOver("thinking.type", "between_tools", _STAYS_TEXT)


def _deferred(tools: Sequence[tuple[int, ToolParam]], wire: PromptRequest) -> dict[str, ToolParam]:
    """Return the tools to describe later: none if no tool that runs could find them."""
    if any((tool.type or "").startswith(_HOSTED_SEARCH) for tool in wire.tools or ()):
        return {}
    deferred = {one.name: one for _, one in tools if one.defer_loading and one.name is not None}
    return deferred if len(deferred) < len(tools) else {}


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


def _changes_in(wire: PromptRequest) -> Iterator[tuple[str, Change | ToolReferenceBlock]]:
    for place, turn in enumerate(wire.messages):
        for number, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
            if isinstance(block, ToolAdditionBlock | ToolRemovalBlock):
                yield f"messages[{place}].content[{number}].tool", block
            elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                found = (one for one in block.content if isinstance(one, ToolReferenceBlock))
                yield from ((f"messages[{place}].content[{number}]", one) for one in found)


class _Changes:
    def __init__(self, declared: dict[str, ToolSpec], deferred: Mapping[str, ToolParam]) -> None:
        self.known = dict(declared)
        self.in_force = {name: spec for name, spec in declared.items() if name not in deferred}
        self.unshown = {*deferred}
        self.defined: list[ToolSpec] = []
        self.passed_over: list[PassedOver] = []

    def apply(self, block: Change | ToolReferenceBlock, where: str) -> None:
        if isinstance(block, ToolReferenceBlock):
            if block.tool_name in self.unshown:
                self._offer(block.tool_name)
            return
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
                    self._offer(name)
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

    def _offer(self, name: str) -> None:
        self.in_force[name] = self.known[name]
        if name in self.unshown:
            self.unshown.remove(name)
            self.defined.append(self.known[name])

    def _define(self, tool: ToolParam, where: str) -> None:
        found = described(tool)
        if found is None:
            self.passed_over.append(PassedOver(where, (tool.type or "")[:64], NOT_RUN))
            return
        spec = _spec(found, where)
        self.known[spec.name] = self.in_force[spec.name] = spec
        self.defined.append(spec)
