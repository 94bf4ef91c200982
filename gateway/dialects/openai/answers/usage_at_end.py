"""The rendering of a chat's answer for clients that read the usage without asking for it.

The clients of Mistral, Cerebras, DeepInfra and others read `usage` in the last chunk with a choice.
Groq's clients read it in the field `x_groq` of this chunk.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from gateway.dialects.openai.answers.chat_reply import ChatReply
from gateway.dialects.openai.answers.rendering import ReplyFormat, sse, usage_reply
from gateway.dialects.openai.answers.replies import ChatChunkChoice, GroqFields
from gateway.generation.choice import Delta, Event
from gateway.requests.request_usage import Usage

PREFIX = "/openai/v1/"  # beginning of all of Groq's paths, and of some of Azure's paths


@dataclass(slots=True, kw_only=True)
class UsageAtEnd(ChatReply):
    """A renderer of chunks. The last chunk with a choice has the usage in `usage_field`.

    The end of a choice is held back until the next choice ends or the usage is known.
    """

    usage_field: Literal["usage", "x_groq"]
    held: ChatChunkChoice | None = None

    def piece(self, event: Event) -> ChatChunkChoice | None:
        """Write a chunk's choice for `event`.

        If `event` is a choice's end, hold it back, and write the end that was held back before.
        """
        choice = ChatReply.piece(self, event)  # `super()` fails in a dataclass with slots
        if isinstance(event, Delta):
            return choice
        held, self.held = self.held, choice
        return held

    def usage_frame(self, usage: Usage) -> bytes:
        """Write the held end of a choice with the usage, then OpenAI's usage chunk."""
        asked = ReplyFormat.usage_frame(self, usage) or b""
        if self.held is None:
            return asked
        counts = usage_reply(usage)
        told = counts if self.usage_field == "usage" else GroqFields(self.id, counts)
        last = msgspec.structs.replace(self.chunk_of(self.held), **{self.usage_field: told})
        return sse(last) + asked
