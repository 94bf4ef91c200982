"""The breakpoints of a chat, in OpenAI's form or in Anthropic's, which many clients send.

    prompt_cache_breakpoint   on a part of any message except the assistant's
    cache_control             on a part, on a message, on a tool or on its function

`cache_control` follows the rules of `/v1/messages`. A chat has breakpoints of one form only. The
end of the prompt may also be a breakpoint. This breakpoint counts as one of the four allowed
breakpoints.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from msgspec import structs

from gateway.dialects.cache_control import MOST, Marked, check_text
from gateway.dialects.openai.requests.schema import ChatRequest
from gateway.dialects.openai_cache import Breakpoint, marks_of, with_controls
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import ChatMessage, Lifetime, SaidPart, TextPart, message_of
from gateway.prompts.chats.chat_tools import SentTools
from gateway.prompts.generation_request import CacheMark, ChatPrompt


class _Place(NamedTuple):
    """A breakpoint's place: after a message, after its first `parts` parts, or after a tool."""

    message: int = 0
    parts: int | None = None
    tool: int | None = None


def marks_of_chat(wire: ChatRequest, prompt: ChatPrompt, tools: SentTools) -> tuple[CacheMark, ...]:
    """Read the breakpoints of `wire`, in order, each with the chat that it covers.

    Raises BadRequest if a breakpoint breaks the API's rules.
    """

    def covered(place: _Place) -> ChatPrompt | None:
        return _covered(place, wire, prompt, tools)

    own = [Breakpoint(covered(place), ttl) for place, ttl in [*_breakpoints(wire.messages)][-MOST:]]
    marks = marks_of(wire.prompt_cache_retention, wire.prompt_cache_options, own)
    return with_controls(marks, [*_controls(wire, tools)], covered, has_breakpoints=bool(own))


def _breakpoints(messages: Sequence[ChatMessage]) -> Iterator[tuple[_Place, Lifetime | None]]:
    for place, message in enumerate(messages):
        for at, part in _texts(message):
            if part.prompt_cache_breakpoint is None:
                continue
            if message.role == "assistant":
                raise BadRequest(
                    "what the assistant said cannot have a breakpoint",
                    param=f"messages[{place}].content[{at}].prompt_cache_breakpoint",
                )
            yield _Place(place, at + 1), part.prompt_cache_breakpoint.ttl


def _controls(wire: ChatRequest, tools: SentTools) -> Iterator[tuple[Marked, _Place]]:
    for at, control in tools.marks:
        yield Marked(f"tools[{at}].cache_control", control), _Place(tool=at)
    for place, message in enumerate(wire.messages):
        where, on_message = f"messages[{place}]", message.cache_control
        for at, part in _texts(message):
            if part.cache_control is None:
                continue
            param = f"{where}.content[{at}].cache_control"
            check_text(part.text, param)
            if at == len(_parts(message)) - 1:
                # the breakpoint of the last part replaces the message's, which is at the same place
                on_message = None
            yield Marked(param, part.cache_control), _Place(place, at + 1)
        if on_message is not None:
            yield Marked(f"{where}.cache_control", on_message), _Place(place)


def _covered(
    place: _Place, wire: ChatRequest, prompt: ChatPrompt, tools: SentTools
) -> ChatPrompt | None:
    """Return the chat up to the breakpoint, or None for a breakpoint at the chat's end."""
    if place.tool is not None:
        system = takewhile(lambda one: one.role == "system", prompt.messages)
        return replace(prompt, messages=tuple(system), tools=tools.up_to(place.tool))
    message = wire.messages[place.message]
    is_whole = place.parts in (None, len(_parts(message)))
    if is_whole and place.message == len(wire.messages) - 1:
        return None
    said = prompt.messages[place.message]
    if not is_whole:
        cut = structs.replace(message, content=list(_parts(message)[: place.parts]))
        said = message_of(cut, place.message)
    return replace(prompt, messages=(*prompt.messages[: place.message], said))


def _texts(message: ChatMessage) -> list[tuple[int, TextPart]]:
    parts = enumerate(_parts(message))
    return [(at, part) for at, part in parts if isinstance(part, TextPart)]


def _parts(message: ChatMessage) -> Sequence[SaidPart]:
    return message.content if isinstance(message.content, list) else ()
