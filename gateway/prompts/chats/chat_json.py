"""The JSON of chats in OpenAI's form, which chat templates also read.

The dialects of this form, and the operator's routes that publish messages, read these Structs.
`Raw` fields are known but not supported. `messages.py` has the message that these Structs become.

Elsewhere: how a model writes a call (`gateway/turn_formats`).
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from gateway.errors import BadRequest
from gateway.http.bodies.body import check_inner
from gateway.prompts.chats.messages import Message, Reasoning, Text, ToolCall, ToolResult
from gateway.prompts.chats.offered_tools import free_arguments

_ASKS_NOTHING = {b"", b"null", b"false", b"[]", b'""', b"0"}

NULL: dict[str, Any] = {"type": "null"}
NONE: dict[str, Any] = {"anyOf": [NULL, {"type": "array", "maxItems": 0}]}


# retention time after each use; 30m and 12h are OpenAI's values
Lifetime = Literal["5m", "30m", "1h", "12h"]


class CacheBreakpoint(Struct, frozen=True):
    """A cache breakpoint. The prompt up to this part is retained for `ttl`.

    Without `ttl`, the request's retention time counts.
    """

    mode: Literal["explicit"] = "explicit"
    ttl: Lifetime | None = None


class CacheControl(Struct, frozen=True):
    """Anthropic's cache breakpoint, which many clients send."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A text within a message."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None
    cache_control: CacheControl | None = None


class PlainText(Struct, frozen=True):
    """A text that can have no breakpoint."""

    # `type` is a plain field, not msgspec's tag. With only one type, msgspec would accept a part
    # without the tag.
    type: Literal["text"]
    text: str


class ThoughtPart(Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning that Mistral's clients send back."""

    thinking: list[PlainText]


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """The text in which a model has refused to answer. It may come from another server."""

    refusal: str


SaidPart = TextPart | ThoughtPart | RefusalPart


class ReasoningDetail(Struct, frozen=True):
    """A part of the reasoning in OpenRouter's form. Encrypted parts have no text."""

    text: str | None = None
    summary: str | None = None


class SaidFunction(Struct, frozen=True, kw_only=True):
    """The called function. Some clients send the arguments as an object, not as a JSON string."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: str | dict[str, Any] | None = None


class SaidText(Struct, frozen=True, kw_only=True):
    """The call of a tool whose input is text."""

    name: Annotated[str, Meta(min_length=1)]
    input: str


class SaidCall(Struct, frozen=True, kw_only=True):
    """The assistant's call of a function or of a `custom` tool."""

    function: SaidFunction | None = None
    custom: SaidText | None = None
    id: str | None = None
    type: Literal["function", "custom"] = "function"


def _of_type(name: str, *, is_default: bool = False) -> dict[str, Any]:
    required = [name] if is_default else [name, "type"]
    return {"required": required, "properties": {"type": {"enum": [name]}, name: {"not": NULL}}}


_CALL = {"anyOf": [_of_type("function", is_default=True), _of_type("custom")]}


class ChatMessage(Struct, frozen=True, kw_only=True):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[SaidPart] | None = None
    refusal: str | None = None  # the text of an assistant's message without content
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Annotated[SaidCall, Meta(extra_json_schema=_CALL)]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's newer name of the reasoning
    # gpt-oss's name of the reasoning, which its template reads
    thinking: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None  # OpenRouter's parts of the reasoning
    # Mistral's and DeepSeek's flag of a last message that the answer continues
    prefix: bool | None = None
    partial: bool | None = None  # Kimi's and Qwen's name of `prefix`
    cache_control: CacheControl | None = None  # the cache breakpoint of a message without parts
    function_call: Raw = field(default_factory=Raw)
    audio: Raw = field(default_factory=Raw)


# Only the assistant has messages without content, such as calls, a refusal, or a thought alone.
_SAID = {
    "required": ["role"],
    "anyOf": [
        {"required": ["content"], "properties": {"content": {"not": NULL}}},
        {"properties": {"role": {"enum": ["assistant"]}}},
    ],
}
SaidMessage = Annotated[ChatMessage, Meta(extra_json_schema=_SAID)]


def check_arguments(messages: Sequence[ChatMessage]) -> None:
    """Raise BadRequest if the calls' arguments, JSON in strings, have too many values."""
    calls = (call.function for message in messages for call in message.tool_calls or ())
    check_spelled((call.arguments for call in calls if call is not None), "messages")


def check_spelled(arguments: Iterable[object], param: str) -> None:
    """Raise BadRequest if the `arguments` that are JSON in strings have too many values.

    The values of all calls are added up, since a request may have thousands of calls. A value takes
    up to thirty times the bytes of its JSON.
    """
    texts = [one.encode() for one in arguments if isinstance(one, str)]
    if texts:
        check_inner(b",".join(texts), param)


def message_of(message: ChatMessage, place: int) -> Message:
    """Read message `place`; raise BadRequest for an empty message, or for forbidden calls."""
    where = f"messages[{place}]"
    calls = _calls_of(message, where)
    content = message.content
    if not content and message.role == "assistant":
        content = message.refusal or ""
    if content is None:
        raise BadRequest(f"message {place} has no content", param=f"{where}.content")
    text = content if isinstance(content, str) else "\n".join(_texts_of(content or ()))
    # `developer` is the newer name of the role `system`; templates know only the older name.
    role = "system" if message.role == "developer" else message.role
    call_id = message.tool_call_id
    part = Text(text) if call_id is None else ToolResult(text, call_id)
    told = message.reasoning_content or message.reasoning or message.thinking
    details = message.reasoning_details or ()
    routed = "".join(one.text or one.summary or "" for one in details)
    thought = _thought_in(message, where) or told or routed
    reasoning = [Reasoning(thought)] if thought and role == "assistant" else []
    return Message(role, (*reasoning, part, *calls), message.name, where)


def _texts_of(content: Iterable[SaidPart]) -> list[str]:
    said = (part for part in content if not isinstance(part, ThoughtPart))
    return [part.text if isinstance(part, TextPart) else part.refusal for part in said]


def _thought_in(message: ChatMessage, where: str) -> str:
    """Join the reasoning among a message's parts; raise BadRequest for parts of other roles."""
    content = message.content if isinstance(message.content, list) else ()
    own = [at for at, part in enumerate(content) if not isinstance(part, TextPart)]
    if own and message.role != "assistant":
        raise BadRequest(
            "only the assistant thinks or refuses", param=f"{where}.content[{own[0]}].type"
        )
    thoughts = (part for part in content if isinstance(part, ThoughtPart))
    return "".join(one.text for part in thoughts for one in part.thinking)


def _calls_of(message: ChatMessage, where: str) -> list[ToolCall]:
    calls = message.tool_calls or []
    if calls and message.role != "assistant":
        raise BadRequest("only the assistant calls tools", param=f"{where}.tool_calls")
    return [_call_of(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]


def _call_of(call: SaidCall, where: str) -> ToolCall:
    function, custom = call.function, call.custom
    if call.type == "custom" and custom is not None:
        return ToolCall(custom.name, free_arguments(custom.input), call.id)
    if call.type == "function" and function is not None:
        arguments = arguments_of(function.arguments, f"{where}.function.arguments")
        return ToolCall(function.name, arguments, call.id)
    raise BadRequest(
        f"the call has no `{call.type}`",
        code="missing_required_parameter",
        param=f"{where}.{call.type}",
    )


def arguments_of(given: str | dict[str, Any] | None, param: str) -> dict[str, Any]:
    """Read arguments as a JSON object. Absent arguments become an empty object."""
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
    """Raise BadRequest for the first unsupported (`Raw`) field that has a value."""
    for name, sent in _unsupported_fields(type(wire)):
        if asks_something(getattr(wire, name)):
            raise unsupported(f"{where}{sent}")


def asks_something(raw: Raw) -> bool:
    """Return whether an unsupported field has a value that asks for anything."""
    return bytes(raw).strip() not in _ASKS_NOTHING


def unsupported(param: str, unless: str = "") -> BadRequest:
    """Make the error for a known but unsupported field. `unless` names the supported case."""
    message = f"`{param}` is not supported{unless and f' unless {unless}'}"
    return BadRequest(message, code="unsupported_parameter", param=param)


@cache
def _unsupported_fields(struct: type[Struct]) -> tuple[tuple[str, str], ...]:
    fields = msgspec.structs.fields(struct)
    return tuple((one.name, one.encode_name) for one in fields if one.type is Raw)
