"""The rendering of a chat's answer for Mistral's clients, whose API is at OpenAI's path.

These clients refuse a chunk with only a part of a call, and a message without text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fastapi import Request
from msgspec.structs import replace

from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.openai.answers.chat_reply import ChatReply
from gateway.dialects.openai.answers.replies import (
    ChatChoice,
    FunctionDelta,
    MessageDelta,
    ToolCallDelta,
)
from gateway.dialects.openai.answers.usage_at_end import UsageAtEnd
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece

_CLIENTS = "mistral-client-"  # beginning of `user-agent` of the clients for Python and node


def is_mistrals(request: Request) -> bool:
    """Return whether a request comes from a client of Mistral's API."""
    return request.headers.get("user-agent", "").startswith(_CLIENTS)


@dataclass(slots=True, kw_only=True)
class MistralReply(UsageAtEnd):
    """A renderer of streams. It sends each call whole, in one chunk."""

    # for each choice: the incomplete call, its name, and its arguments so far
    open_calls: dict[int, tuple[ToolCallDelta, str, list[str]]] = field(default_factory=dict)

    def _deltas(self, index: int, piece: Piece) -> Iterator[MessageDelta]:
        if isinstance(piece, CallArguments) and index in self.open_calls:
            self.open_calls[index][2].append(piece.text)
            return
        yield from self._rest_of_text(index)
        if isinstance(piece, CallStarted) and piece.name not in self.free:
            self.open_calls[index] = self._begun(index, piece.name), piece.name, []
        else:
            yield from ChatReply._deltas(self, index, piece)  # `super()` fails with slots

    def _rest_of_text(self, index: int) -> Iterator[MessageDelta]:
        if index in self.open_calls:
            call, name, arguments = self.open_calls.pop(index)
            function = FunctionDelta(name, "".join(arguments))
            yield MessageDelta(tool_calls=[replace(call, function=function)])
        yield from ChatReply._rest_of_text(self, index)

    def _choice(self, choice: FinishedChoice) -> ChatChoice:
        shown = ChatReply._choice(self, choice)
        return replace(shown, message=replace(shown.message, content=choice.text))
