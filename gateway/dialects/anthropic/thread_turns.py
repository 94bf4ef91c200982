"""The conversation that a thread holds, and the request that continues it.

A thread holds the model, the system, the tools and the turns, with the answers. A thread holds no
breakpoints. Each request sets its own breakpoints, since a request may have only a few.

Elsewhere: where a thread is stored (`threads.py`).
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from gateway.dialects.anthropic.chats.prompts import system_of
from gateway.dialects.anthropic.content.blocks import (
    Block,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.dialects.anthropic.content.foreign_blocks import ForeignBlock
from gateway.dialects.anthropic.content.tool_params import ToolParam
from gateway.dialects.anthropic.rendering import call_id
from gateway.dialects.anthropic.schema import PromptRequest
from gateway.dialects.finished_choice import FinishedCall, FinishedPiece
from gateway.errors import BadRequest
from gateway.turn_formats.pieces import ReasoningPiece, TextPiece

Wire = TypeVar("Wire", bound=PromptRequest)


class HeldConversation(Struct, frozen=True, kw_only=True):
    """The conversation before an answer: its model, system prompt, tools and turns."""

    model: str
    system: str | list[TextBlock] | None
    tools: list[ToolParam] | None
    messages: list[InputMessage]


class HeldTurn(Struct, frozen=True, kw_only=True):
    """A stored turn of a thread: the conversation before the answer, and the answer."""

    asked: HeldConversation
    answer: list[Block]


def conversation_of(wire: PromptRequest, model: str) -> HeldConversation:
    """Return the conversation that a thread stores for the request `wire` to `model`."""
    return HeldConversation(
        model=model,
        system=wire.system,
        tools=wire.tools,
        messages=[*map(_unmarked_turn, wire.messages)],
    )


def continued(wire: Wire, held: HeldTurn, model: str) -> Wire:
    """Put the stored conversation before the turns of `wire`, a request to `model`.

    Raises BadRequest with the names of fields that differ from the thread's fields.
    """
    asked = held.asked
    changed = [*_changed(wire, asked, model)]
    if changed:
        names = ", ".join(f"`{name}`" for name in changed)
        raise BadRequest(
            f"{names} must stay the same in a thread: leave them out, or send the whole"
            ' conversation with `thread: {"type": "create"}`',
            code="thread_fingerprint_mismatch",
            param=changed[0],
        )
    answer = [InputMessage(role="assistant", content=held.answer)] if held.answer else []
    return structs.replace(
        wire,
        system=asked.system if wire.system is None else wire.system,
        tools=asked.tools if wire.tools is None else wire.tools,
        messages=[*asked.messages, *answer, *wire.messages],
    )


def answer_of(pieces: Sequence[FinishedPiece], request_id: str) -> list[Block]:
    """Write an answer as blocks of the assistant's turn, with the ids that the client received."""
    blocks: list[Block] = []
    calls = 0
    for piece in pieces:
        match piece:
            case TextPiece(text):
                blocks.append(TextBlock(text=text))
            case ReasoningPiece(text):
                blocks.append(ThinkingBlock(thinking=text))
            case FinishedCall(name):
                called = call_id(request_id, calls)
                blocks.append(ToolUseBlock(id=called, name=name, input=piece.object()))
                calls += 1
    return blocks


def _changed(wire: PromptRequest, asked: HeldConversation, model: str) -> Iterator[str]:
    if model != asked.model:
        yield "model"
    if wire.system is not None and system_of(wire.system) != system_of(asked.system):
        yield "system"
    if wire.tools is not None and _unmarked(wire.tools) != _unmarked(asked.tools or ()):
        yield "tools"


def _unmarked(tools: Sequence[ToolParam]) -> list[ToolParam]:
    return [structs.replace(tool, cache_control=None) for tool in tools]


def _unmarked_turn(turn: InputMessage) -> InputMessage:
    if not isinstance(turn.content, list):
        return turn
    return structs.replace(turn, content=[*map(_unmarked_block, turn.content)])


def _unmarked_block(block: Block) -> Block:
    if isinstance(block, ForeignBlock):
        return block
    if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
        parts = [
            structs.replace(part, cache_control=None) if isinstance(part, TextBlock) else part
            for part in block.content
        ]
        block = structs.replace(block, content=parts)
    return structs.replace(block, cache_control=None)
