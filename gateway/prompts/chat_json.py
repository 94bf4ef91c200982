"""A chat as JSON, as OpenAI's API has made it common and chat templates take it.

Dialects that speak it and the operator, who publishes messages, read the same Structs. `Raw` fields
are known but not supported.

A template shows the model a tool as it was sent, with its fields in the caller's order and those
that only the model knows. So a tool is checked as a Struct, and given on as a plain object.

Knows: names and types, and what a message becomes (`messages.py`). Does not know: who may send
tools, or how a model writes a call (`gateway/turn_formats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from gateway.errors import BadRequest
from gateway.http.body import check_inner, parse_part
from gateway.prompts.chat_template import Tool
from gateway.prompts.messages import Message, Reasoning, Text, ToolCall, ToolResult
from gateway.turn_formats.turn_format import ToolSpec

MAX_TOOLS = 128  # as many as OpenAI takes
_ASKS_NOTHING = {b"", b"null", b"false", b"[]", b'""', b"0"}

NULL: dict[str, Any] = {"type": "null"}
NONE: dict[str, Any] = {"anyOf": [NULL, {"type": "array", "maxItems": 0}]}


Lifetime = Literal["5m", "30m", "1h", "12h"]  # after each use; OpenAI has 30m and 12h


class CacheBreakpoint(Struct, frozen=True):
    """A mark: all up to its part is to be retained in the cache, for `ttl` or the request's."""

    mode: Literal["explicit"] = "explicit"
    ttl: Lifetime | None = None


class CacheControl(Struct, frozen=True):
    """Anthropic's mark, which many clients send to any server: all up to its block, for a while."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextPart(Struct, frozen=True):
    """A piece of a message's text."""

    # Not a tag of msgspec's: where there is but one type, it would take a part without any.
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None
    cache_control: CacheControl | None = None


class SaidFunction(Struct, frozen=True, kw_only=True):
    """What was called. Some clients send the arguments as an object, not as JSON of one."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: str | dict[str, Any] | None = None


class SaidCall(Struct, frozen=True, kw_only=True):
    """A call that the assistant made."""

    function: SaidFunction
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[SaidCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's newer name of it
    thinking: str | None = None  # gpt-oss's name of it, which its template reads
    cache_control: CacheControl | None = None  # where a message without parts is marked
    function_call: Raw = field(default_factory=Raw)
    audio: Raw = field(default_factory=Raw)


# A message without content is one of tool calls.
_SAID = {
    "required": ["role"],
    "anyOf": [
        {"required": ["content"], "properties": {"content": {"not": NULL}}},
        {
            "required": ["tool_calls"],
            "properties": {
                "role": {"enum": ["assistant"]},
                "tool_calls": {"type": "array", "minItems": 1},
            },
        },
    ],
}
SaidMessage = Annotated[ChatMessage, Meta(extra_json_schema=_SAID)]


def check_arguments(messages: Sequence[ChatMessage]) -> None:
    """BadRequest where the calls' arguments, which are JSON in strings, have too many values."""
    calls = (call for message in messages for call in message.tool_calls or ())
    spelled = [call.function.arguments for call in calls]
    texts = [one.encode() for one in spelled if isinstance(one, str)]
    if texts:
        check_inner(b",".join(texts), "messages")


def message_of(message: ChatMessage, place: int) -> Message:
    """Message number `place`; BadRequest for one that says nothing, or calls what it must not."""
    where = f"messages[{place}]"
    calls = _calls_of(message, where)
    content = message.content
    if content is None and not calls:
        raise BadRequest(f"message {place} has no content", param=f"{where}.content")
    text = content if isinstance(content, str) else "\n".join(part.text for part in content or ())
    # `developer` is the newer name for the same role; templates know the older one.
    role = "system" if message.role == "developer" else message.role
    call_id = message.tool_call_id
    part = Text(text) if call_id is None else ToolResult(text, call_id)
    thought = message.reasoning_content or message.reasoning or message.thinking
    reasoning = [Reasoning(thought)] if thought and role == "assistant" else []
    return Message(role, (*reasoning, part, *calls), message.name)


def _calls_of(message: ChatMessage, where: str) -> list[ToolCall]:
    calls = message.tool_calls or []
    if calls and message.role != "assistant":
        raise BadRequest("only the assistant calls tools", param=f"{where}.tool_calls")
    return [
        _call_of(call, f"{where}.tool_calls[{number}].function.arguments")
        for number, call in enumerate(calls)
    ]


def _call_of(call: SaidCall, param: str) -> ToolCall:
    return ToolCall(call.function.name, arguments_of(call.function.arguments, param), call.id)


def arguments_of(given: str | dict[str, Any] | None, param: str) -> dict[str, Any]:
    """Arguments as an object; none at all are an empty one."""
    if isinstance(given, dict):
        return given
    try:
        arguments = msgspec.json.decode((given or "").strip() or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(
            "the arguments are not JSON; a call that was cut off (finish_reason `length`) "
            "cannot be sent back",
            param=param,
        ) from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise BadRequest("the arguments are not JSON of an object", param=param)
    return arguments


def refuse_unsupported(wire: Struct, where: str = "") -> None:
    """BadRequest that names the first unsupported (`Raw`) field with a value."""
    for name in _unsupported_fields(type(wire)):
        if asks_something(getattr(wire, name)):
            raise unsupported(f"{where}{name}")


def asks_something(raw: Raw) -> bool:
    """Whether a field that is not supported has a value that asks for anything."""
    return bytes(raw).strip() not in _ASKS_NOTHING


def unsupported(param: str, unless: str = "") -> BadRequest:
    """The error for a field that is known but not supported, `unless` something."""
    message = f"`{param}` is not supported{unless and f' unless {unless}'}"
    return BadRequest(message, code="unsupported_parameter", param=param)


@cache
def _unsupported_fields(struct: type[Struct]) -> tuple[str, ...]:
    return tuple(one.name for one in msgspec.structs.fields(struct) if one.type is Raw)


class _Function(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None
    cache_control: CacheControl | None = None


class _Sent(Struct, frozen=True):
    type: Literal["function"]
    function: _Function
    cache_control: CacheControl | None = None


class _Checked(Struct, frozen=True):
    tools: Annotated[list[_Sent], Meta(max_length=MAX_TOOLS)] | None


class _PlainTool(Struct, frozen=True):
    tools: list[dict[str, Any]] | None


def _schema() -> dict[str, Any]:
    """Written out whole, since a reference would not resolve where a `Raw` field is described."""
    _, named = msgspec.json.schema_components([_Checked], ref_template="{name}")
    titles = {"_Sent": "Tool", "_Function": "Function", "CacheControl": "CacheControl"}

    def whole(schema: Any) -> Any:
        if isinstance(schema, list):
            return [whole(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        name = schema.get("$ref")
        if name is not None:
            return {**whole(named[name]), "title": titles[name]}
        return {key: whole(one) for key, one in schema.items()}

    return dict(whole(named["_Checked"]["properties"]["tools"]))


_CHECKED = msgspec.json.Decoder(_Checked)
_PLAIN = msgspec.json.Decoder(_PlainTool)

Tools = Annotated[Raw, Meta(extra_json_schema=_schema())]


def tools_of(raw: Raw) -> list[Tool] | None:
    """The tools in a field of a body that `parse` has seen; None for none and for an empty list.

    BadRequest that names the first field that is wrong, such as `tools[3].function.name`.
    """
    if not bytes(raw):
        return None
    part = b'{"tools":%b}' % bytes(raw)
    parse_part(_CHECKED, part)
    # Also what was passed over until now must be right: this reads every value.
    plain: list[Tool] | None = parse_part(_PLAIN, part).tools
    for tool in plain or ():
        # No model is shown a mark: the prompt would change with it.
        tool.pop("cache_control", None)
        tool["function"].pop("cache_control", None)
    return plain or None


def marked_tools(raw: Raw) -> list[tuple[int, CacheControl]]:
    """The marks in a field that `tools_of` has read, each with the place of its tool."""
    if b'"cache_control"' not in bytes(raw):
        return []
    sent = parse_part(_CHECKED, b'{"tools":%b}' % bytes(raw)).tools or []
    marks = ((at, one.cache_control or one.function.cache_control) for at, one in enumerate(sent))
    return [(at, control) for at, control in marks if control is not None]


def specs_of(tools: Sequence[Tool]) -> tuple[ToolSpec, ...]:
    """What may be called, of tools as `tools_of` gives them."""
    functions = [tool["function"] for tool in tools]
    return tuple(
        ToolSpec(one["name"], one.get("parameters"), bool(one.get("strict"))) for one in functions
    )
