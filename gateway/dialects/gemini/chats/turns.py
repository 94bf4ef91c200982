"""The conversion of Gemini's turns into chat messages.

Adjacent turns of one role are one turn, since clients send each chunk of a stream back as a turn.
Each result of a call becomes a message. Calls without ids get numbers. A result without an id
belongs to the first call of its name that still lacks a result.

Elsewhere: the other fields (`prompts.py`).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from gateway.dialects.gemini.parts import GeminiContent, GeminiPart, GeminiResult, listed
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import asks_something, refuse_unsupported, unsupported
from gateway.prompts.chats.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult

_FAILED = "Error: "  # begins a failed call's result, since templates have no field for a failure
_USERS = (None, "user", "function")


class _Placed(NamedTuple):
    part: GeminiPart
    where: str


class _Calls:
    def __init__(self) -> None:
        self._made = 0
        self._open: list[tuple[str, str]] = []  # ids and names of calls without a result

    def made(self, name: str, given: str | None) -> str:
        self._made += 1
        call_id = given or f"call_{self._made}"
        self._open.append((call_id, name))
        return call_id

    def answered(self, result: GeminiResult) -> str:
        for place, (call_id, name) in enumerate(self._open):
            if call_id == result.id if result.id else name == result.name:
                del self._open[place]
                return call_id
        return result.id or ""


def messages_of(contents: Sequence[GeminiContent], cached: int = 0) -> Iterator[Message]:
    """Convert the turns into messages; raise BadRequest for a misplaced part.

    The first `cached` turns come from the request's cached content.
    """
    calls = _Calls()
    placed = [(_where(place - cached), turn) for place, turn in enumerate(contents)]
    for role, turns in groupby(placed, key=lambda one: _role_of(*one)):
        parts = [part for where, turn in turns for part in _parts(turn, where)]
        if role == "model":
            yield _assistant(parts, calls)
        else:
            yield from _users(parts, calls)


def text_of(given: GeminiContent, where: str) -> str:
    """Join the texts of the content in the field `where`; raise BadRequest for other parts."""
    texts = []
    for part, place in _parts(given, where):
        if part.text is None:
            raise BadRequest("this field has texts alone", param=place)
        texts.append(part.text)
    return "\n".join(texts)


def system_of(given: GeminiContent | None) -> list[Message]:
    """Return the system instruction as a list of one message, or [] without text."""
    text = "" if given is None else text_of(given, "systemInstruction")
    return [Message("system", (Text(text),), param="systemInstruction")] if text else []


def _where(place: int) -> str:
    return "cachedContent" if place < 0 else f"contents[{place}]"


def _role_of(where: str, turn: GeminiContent) -> str:
    if turn.role == "model":
        return "model"
    if turn.role in _USERS:
        return "user"
    raise BadRequest(
        "a turn's role is `user` or `model`; what the system says is in `systemInstruction`",
        param=f"{where}.role",
    )


def _parts(turn: GeminiContent, where: str) -> Iterator[_Placed]:
    parts = listed(turn.parts)
    for number, part in enumerate(parts):
        at = f"{where}.parts[{number}]"
        refuse_unsupported(part, f"{at}.")
        said = (part.text, part.function_call, part.function_response, part.thought_signature)
        if all(one is None for one in said):
            raise BadRequest("the part has no text, call or result", param=at)
        yield _Placed(part, at)


def _assistant(parts: Sequence[_Placed], calls: _Calls) -> Message:
    texts, thoughts = list[str](), list[str]()
    made: list[Part] = []
    for part, where in parts:
        if part.function_response is not None:
            raise BadRequest("a result is in a turn of the user", param=where)
        if part.function_call is not None:
            call = part.function_call
            made.append(ToolCall(call.name, call.args or {}, calls.made(call.name, call.id)))
        else:
            (thoughts if part.thought else texts).append(part.text or "")
    thought = "".join(thoughts)
    reasoning: list[Part] = [Reasoning(thought)] if thought else []
    said = (*reasoning, Text("".join(texts)), *made)
    return Message("assistant", said, param=_param(parts))


def _users(parts: Sequence[_Placed], calls: _Calls) -> Iterator[Message]:
    texts: list[str] = []
    for part, where in parts:
        if part.function_call is not None:
            raise BadRequest("a call is in a turn of the model", param=where)
        if part.function_response is None:
            texts.append(part.text or "")
            continue
        if texts:
            yield Message("user", (Text("\n".join(texts)),), param=_param(parts))
            texts = []
        result = part.function_response
        said = ToolResult(_result(result, where), calls.answered(result))
        yield Message("tool", (said,), result.name or None, where)
    if texts or not parts:
        yield Message("user", (Text("\n".join(texts)),), param=_param(parts))


def _param(parts: Sequence[_Placed]) -> str:
    return parts[0].where if parts else "contents"


def _result(result: GeminiResult, where: str) -> str:
    """Write a result as text: its only field `output` or `error`, or else all fields."""
    if asks_something(result.parts):
        raise unsupported(f"{where}.functionResponse.parts")
    given = result.response or {}
    for name, prefix in (("output", ""), ("error", _FAILED)):
        if len(given) == 1 and name in given:
            return prefix + _spelled(given[name])
    return _spelled(given)


def _spelled(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
