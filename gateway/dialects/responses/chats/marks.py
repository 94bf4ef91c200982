"""The breakpoints of a request, in OpenAI's form or in Anthropic's, which some clients send.

    prompt_cache_breakpoint   on a part of any item except the assistant's
    cache_control             on a part, on an item, or on a tool

`cache_control` follows the rules of `/v1/messages`. `cache_control` is ignored in the items of a
stored response, since their prefixes are retained already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from msgspec import structs

from gateway.dialects.cache_control import MOST, Marked, check_text
from gateway.dialects.openai_cache import Breakpoint, marks_of, with_controls
from gateway.dialects.responses.chats.toolset import Toolset
from gateway.dialects.responses.chats.turns import messages_of
from gateway.dialects.responses.input_items.items import OUTPUTS, STORED, Placed
from gateway.dialects.responses.schema import Item, ItemPart, ResponsesRequest
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import Lifetime
from gateway.prompts.generation_request import CacheMark, ChatPrompt


class _Place(NamedTuple):
    """A breakpoint's place: after an item, after its first `parts` parts, or after a tool."""

    item: int = 0
    parts: int | None = None
    tool: int | None = None


def marks_of_response(
    wire: ResponsesRequest, items: Sequence[Placed], prompt: ChatPrompt, tools: Toolset
) -> tuple[CacheMark, ...]:
    """Read the breakpoints of `wire`, whose `items` are in `prompt`.

    Raises BadRequest if a breakpoint breaks the API's rules.
    """

    def covered(place: _Place) -> ChatPrompt | None:
        return _covered(place, wire, items, prompt, tools)

    own = [Breakpoint(covered(place), ttl) for place, ttl in [*_breakpoints(items)][-MOST:]]
    marks = marks_of(wire.prompt_cache_retention, wire.prompt_cache_options, own)
    return with_controls(marks, [*_controls(items, tools)], covered, has_breakpoints=bool(own))


def _breakpoints(items: Sequence[Placed]) -> Iterator[tuple[_Place, Lifetime | None]]:
    for place, placed in enumerate(items):
        item = placed.item
        for at, part in enumerate(_parts(item)):
            if part.prompt_cache_breakpoint is None:
                continue
            if item.role == "assistant" or item.type == "reasoning":
                raise BadRequest(
                    "what the assistant said cannot have a breakpoint",
                    param=f"{placed.param}.content[{at}].prompt_cache_breakpoint",
                )
            yield _Place(place, at + 1), part.prompt_cache_breakpoint.ttl


def _controls(items: Sequence[Placed], tools: Toolset) -> Iterator[tuple[Marked, _Place]]:
    for at, control in tools.marks:
        yield Marked(f"tools[{at}].cache_control", control), _Place(tool=at)
    for place, (item, where) in enumerate((one.item, one.param) for one in items):
        if where == STORED:
            continue
        on_item, parts = item.cache_control, _parts(item)
        for at, part in enumerate(parts):
            if part.cache_control is None:
                continue
            param = f"{where}.{_field(item)}[{at}].cache_control"
            check_text(part.text or part.refusal or "", param)
            if at == len(parts) - 1:
                # the breakpoint of the last part replaces the item's, which is at the same place
                on_item = None
            yield Marked(param, part.cache_control), _Place(place, at + 1)
        if on_item is not None:
            yield Marked(f"{where}.cache_control", on_item), _Place(place)


def _covered(
    place: _Place,
    wire: ResponsesRequest,
    items: Sequence[Placed],
    prompt: ChatPrompt,
    tools: Toolset,
) -> ChatPrompt | None:
    """Return the chat up to the breakpoint, or None for a breakpoint at the chat's end."""
    if place.tool is not None:
        system = takewhile(lambda one: one.role == "system", prompt.messages)
        return replace(prompt, messages=tuple(system), tools=tools.up_to(place.tool))
    item, where = items[place.item].item, items[place.item].param
    is_whole = place.parts in (None, len(_parts(item)))
    if is_whole and place.item == len(items) - 1:
        return None
    if not is_whole:
        item = structs.replace(item, **{_field(item): list(_parts(item)[: place.parts])})
    cut = [*items[: place.item], Placed(item, where)]
    said = messages_of(wire.instructions, cut, tools.in_place)
    return replace(prompt, messages=said)


def _field(item: Item) -> str:
    return "output" if item.type in OUTPUTS else "content"


def _parts(item: Item) -> Sequence[ItemPart]:
    held = item.output if item.type in OUTPUTS else item.content
    return held if isinstance(held, list) else ()
