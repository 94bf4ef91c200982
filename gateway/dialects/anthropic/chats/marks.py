"""A request's breakpoints (`cache_control`) and the prompt prefixes that they retain in the cache.

A breakpoint covers the prompt up to its content block: tools first, then the system, then turns.
`cache_control` beside the turns is a breakpoint at the end of the prompt. That field has no effect
if the last block has a breakpoint with the same `ttl`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import msgspec

from gateway.dialects.anthropic.chats.prompts import system_of
from gateway.dialects.anthropic.chats.tools import RequestTools
from gateway.dialects.anthropic.chats.turns import messages_of
from gateway.dialects.anthropic.content.blocks import (
    Block,
    InputMessage,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from gateway.dialects.anthropic.content.foreign_blocks import ForeignBlock
from gateway.dialects.anthropic.schema import PromptRequest
from gateway.dialects.cache_control import Marked, check, check_text, seconds_of
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import CacheControl
from gateway.prompts.generation_request import CacheMark, ChatPrompt


class _Place(NamedTuple):
    param: str
    control: CacheControl
    tools: int | None = None  # number of tools that a breakpoint on a tool covers
    # number of system blocks that a breakpoint on a system block covers
    system: int | None = None
    # number of whole turns that a breakpoint within the turns covers
    turn: int = 0
    # number of content blocks of the next turn that the breakpoint covers; None: the breakpoint is
    # at the prompt's end
    blocks: int | None = None


def marks_of(wire: PromptRequest, prompt: ChatPrompt) -> tuple[CacheMark, ...]:
    """Read the breakpoints of `wire`, in order, each with the chat that it covers.

    Raises BadRequest if a breakpoint breaks the API's rules.
    """
    places = [*_places(wire)]
    if wire.cache_control is not None:
        places = _with_automatic(places, wire.cache_control, wire)
    check([Marked(place.param, place.control) for place in places])
    return tuple(
        CacheMark(seconds_of(place.control), _covered(place, wire, prompt)) for place in places
    )


def _with_automatic(
    places: list[_Place], control: CacheControl, wire: PromptRequest
) -> list[_Place]:
    """Add a breakpoint at the prompt's end, unless the last block has an equal breakpoint.

    Raises BadRequest if the last block has a breakpoint with another `ttl`.
    """
    if places and _is_last(places[-1], wire):
        if seconds_of(places[-1].control) != seconds_of(control):
            raise BadRequest(
                "the last block has a `cache_control` with another `ttl`", param="cache_control.ttl"
            )
        return places
    return [*places, _Place("cache_control", control, turn=len(wire.messages))]


def _is_last(place: _Place, wire: PromptRequest) -> bool:
    last = wire.messages[-1].content or ()
    return (
        place.tools is None
        and place.system is None
        and place.turn == len(wire.messages) - 1
        and place.blocks == len(last)
    )


def _places(wire: PromptRequest) -> Iterator[_Place]:
    for at, tool in enumerate(wire.tools or ()):
        if tool.cache_control is not None:
            yield _Place(f"tools[{at}].cache_control", tool.cache_control, tools=at + 1)
    blocks = [] if isinstance(wire.system, str) else wire.system or []
    for at, text in enumerate(blocks):
        control = _mark(text, f"system[{at}]")
        if control is not None:
            yield _Place(f"system[{at}].cache_control", control, system=at + 1)
    for turn, message in enumerate(wire.messages):
        if isinstance(message.content, str):
            continue
        for at, block in enumerate(message.content or ()):
            where = f"messages[{turn}].content[{at}]"
            control = _mark(block, where)
            if control is not None:
                yield _Place(f"{where}.cache_control", control, turn=turn, blocks=at + 1)


def _mark(block: Block, where: str) -> CacheControl | None:
    if isinstance(block, ForeignBlock):
        return None
    control = block.cache_control
    if control is None and isinstance(block, ToolResultBlock) and isinstance(block.content, list):
        texts = [one for one in block.content if isinstance(one, TextBlock)]
        inner = [text.cache_control for text in texts]
        control = next((one for one in reversed(inner) if one is not None), None)
    if control is None:
        return None
    if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
        raise BadRequest("thinking cannot be marked", param=f"{where}.cache_control")
    if isinstance(block, TextBlock):
        check_text(block.text, f"{where}.cache_control")
    return control


def _covered(place: _Place, wire: PromptRequest, prompt: ChatPrompt) -> ChatPrompt | None:
    """Return the chat up to the breakpoint, or None for a breakpoint at the chat's end."""
    if place.tools is None and place.system is None:
        if place.blocks is None or _is_last(place, wire):
            return None
        turn = wire.messages[place.turn]
        assert isinstance(turn.content, list)
        cut: InputMessage = msgspec.structs.replace(turn, content=turn.content[: place.blocks])
        turns = [*wire.messages[: place.turn], cut]
        messages = messages_of(turns, RequestTools.of(wire).deferred)
        return replace(prompt, messages=(*system_of(wire.system), *messages))
    tools = RequestTools.of(wire).forms(place.tools)
    system = wire.system if isinstance(wire.system, str) else (wire.system or [])[: place.system]
    return replace(prompt, messages=tuple(system_of(system)), tools=tools)
