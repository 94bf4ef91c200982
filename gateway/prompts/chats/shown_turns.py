"""The assistant's turns as a chat template shows them, found by rendering small chats.

`gateway/turn_formats` finds a model's formats in these turns.
"""

from collections.abc import Callable, Sequence

from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Reasoning, Text, ToolCall, ToolResult
from gateway.prompts.tokens.control_tokens import Rendered
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
_LONGEST_MARK = 40
_THOUGHT = "This needs a call."


Render = Callable[..., Rendered]


def shown_turns(source: str, render: Render, *, shows_calls: bool = True) -> ShownTurns:
    """Render the turns of small chats, as a template with this source shows them."""
    return ShownTurns(
        source=source,
        tool=_TOOL,
        call=_turn(render, (_CALL,), _TOOL.name) if shows_calls else None,
        thinks=_THOUGHT,
        thought=_turn(render, (Reasoning(_THOUGHT), _CALL), _THOUGHT, is_whole=True),
    )


def _turn(
    render: Render, parts: Sequence[Reasoning | ToolCall], said: str, *, is_whole: bool = False
) -> str | None:
    """Render the assistant's turn after a user's request; None if the rendering lacks `said`.

    With `is_whole` the result includes the chat before the turn, since a prompt may open and close
    the reasoning.
    """
    asks = _rendered(render, [_ASKED], asks=True)
    for after in ([_RESULT], []):
        text = _rendered(render, [_ASKED, Message("assistant", tuple(parts)), *after], asks=False)
        turn = text[_common(asks, text) :]
        if said in turn:
            return text if is_whole else turn
    return None


def _common(one: str, other: str) -> int:
    """Return the length of two texts' common beginning, without an unfinished tag at its end."""
    pairs = enumerate(zip(one, other, strict=False))
    alike = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    least = max(0, alike - _LONGEST_MARK)
    begun = max(one.rfind(char, least, alike) for char in "<[")
    return alike if begun <= max(one.rfind(char, least, alike) for char in ">]") else begun


def _rendered(render: Render, messages: Sequence[Message], *, asks: bool) -> str:
    try:
        return render(messages, add_generation_prompt=asks, tools=[_OFFERED]).text
    except BadRequest:
        return ""
