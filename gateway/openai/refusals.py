"""What OpenAI's API offers and Ratoon does not: refused with an error, never silently ignored.

Knows: fields with an effect on the answer. Does not know: fields without one; they are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.errors import BadRequest
from gateway.openai.schema import ChatMessage, ChatRequest, CompletionRequest
from gateway.openai.tools import holds_tools

_UNSUPPORTED = {
    struct: [field.name for field in msgspec.structs.fields(struct) if field.type is msgspec.Raw]
    for struct in (ChatRequest, CompletionRequest, ChatMessage)
}
_ASKS_NOTHING = {b"", b"null", b"false", b"[]", b"{}", b'""', b"0"}


def refuse_unsupported(
    wire: ChatRequest | CompletionRequest | ChatMessage, where: str = ""
) -> None:
    """BadRequest that names the first unsupported (`Raw`) field with a value."""
    for name in _UNSUPPORTED[type(wire)]:
        if bytes(getattr(wire, name)).strip() not in _ASKS_NOTHING:
            raise unsupported(f"{where}{name}")


def refuse_many(messages: Sequence[ChatMessage], most: int) -> None:
    """BadRequest when there are more messages than are worth a look at each."""
    if len(messages) > most:
        raise BadRequest(f"there are more than {most} messages", param="messages")


def unsupported(param: str, unless: str = "") -> BadRequest:
    """The error for a field that is known but not supported, `unless` something."""
    message = f"`{param}` is not supported{unless and f' unless {unless}'}"
    return BadRequest(message, code="unsupported_parameter", param=param)


def refuse_in_chat(wire: ChatRequest, max_messages: int) -> ChatRequest:
    """`wire` without a `tool_choice` that lets no tool be called; BadRequest for what is left."""
    refuse_many(wire.messages, max_messages)
    choice = bytes(wire.tool_choice)
    if choice != b'"none"' and holds_tools(wire.tools):
        raise unsupported("tools", unless='`tool_choice` is "none"')
    if choice in (b'"none"', b'"auto"', b"null"):
        wire = msgspec.structs.replace(wire, tool_choice=msgspec.Raw())
    refuse_unsupported(wire)
    for place, message in enumerate(wire.messages):
        refuse_unsupported(message, f"messages[{place}].")
    _refuse_format(wire)
    if wire.modalities is not None and wire.modalities != ["text"]:
        raise unsupported("modalities")
    return wire


def refuse_in_completion(wire: CompletionRequest) -> None:
    """BadRequest for what text completions cannot do."""
    refuse_unsupported(wire)
    _refuse_format(wire)
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        raise unsupported("best_of")
    if wire.echo and wire.logprobs is not None:
        raise BadRequest(
            "`logprobs` cannot be given together with `echo`",
            code="unsupported_parameter",
            param="logprobs",
        )


def _refuse_format(wire: ChatRequest | CompletionRequest) -> None:
    if wire.response_format is not None and wire.response_format.type != "text":
        raise unsupported("response_format")
