"""What a chat template shows of the assistant's turns, by rendering small chats.

So a model's formats are known by what its template writes, however the template spells that.

Knows: templates and chats. Does not know: formats (`gateway/turn_formats`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import BadRequest
from gateway.prompts.chat_template import ChatTemplate
from gateway.prompts.messages import Message, Reasoning, Text, ToolCall, ToolResult
from gateway.turn_formats.choose import ShownTurns
from gateway.turn_formats.turn_format import ToolSpec

_CITY, _DAYS = "Bodo", 3
_PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "a city"},
        "days": {"type": "integer", "description": "how many"},
    },
    "required": ["city", "days"],
}
_TOOL = ToolSpec("look_up_weather", _PARAMETERS)
_OFFERED = {
    "type": "function",
    "function": {
        "name": _TOOL.name,
        "description": "looks up the weather",
        "parameters": _PARAMETERS,
    },
}
_ASKED = Message("user", (Text("How is the weather?"),))
_CALL = ToolCall(_TOOL.name, {"city": _CITY, "days": _DAYS}, "abcdefgh1")
_RESULT = Message("tool", (ToolResult("Cold.", "abcdefgh1"),))
_LONGEST_MARK = 40  # characters
_THOUGHT = "This needs a call."


def shown_turns(template: ChatTemplate) -> ShownTurns:
    """The turns of small chats, as `template` shows them."""
    return ShownTurns(
        source=template.source,
        tool=_TOOL,
        call=_turn(template, (_CALL,), _TOOL.name),
        thinks=_THOUGHT,
        thought=_turn(template, (Reasoning(_THOUGHT), _CALL), _THOUGHT),
    )


def _turn(template: ChatTemplate, parts: Sequence[Reasoning | ToolCall], said: str) -> str | None:
    """What the template writes where it asks the assistant; None if it does not show `said`."""
    asks = _rendered(template, [_ASKED], asks=True)
    for after in ([_RESULT], []):
        text = _rendered(template, [_ASKED, Message("assistant", tuple(parts)), *after], asks=False)
        turn = text[_common(asks, text) :]
        if said in turn:
            return turn
    return None


def _common(one: str, other: str) -> int:
    """How far two texts are alike, but for a mark that has only begun."""
    pairs = enumerate(zip(one, other, strict=False))
    alike = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    least = max(0, alike - _LONGEST_MARK)
    begun = max(one.rfind(char, least, alike) for char in "<[")
    return alike if begun <= max(one.rfind(char, least, alike) for char in ">]") else begun


def _rendered(template: ChatTemplate, messages: Sequence[Message], *, asks: bool) -> str:
    """The chat's text; empty where the template refuses it."""
    try:
        return template.render(messages, add_generation_prompt=asks, tools=[_OFFERED]).text
    except BadRequest:
        return ""
