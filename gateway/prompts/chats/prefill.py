"""The prefill: an assistant's message at the end of a chat, which the model's answer continues.

A template may trim or drop a last message, or end the turn after the message. So the template is
given a placeholder instead of the message. The prompt is the text that the template wrote before
the placeholder, followed by the message exactly as it was sent.

Knows: messages, and tags of reasoning. Does not know: how a chat is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.prompts.chats.messages import Message, Reasoning, Text
from gateway.turn_formats.reasoning import ReasoningFormat


@dataclass(frozen=True, slots=True)
class Prefill:
    """The last message of a chat, which the answer continues.

    `thought`: the message's reasoning, if the answer continues the reasoning; `text` is empty then.
    """

    message: Message
    text: str
    thought: str

    @classmethod
    def of(cls, message: Message) -> Prefill:
        """Read the prefill from an assistant's message without calls."""
        text = "".join(part.text for part in message.parts if isinstance(part, Text))
        thought = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
        return cls(message, text, "" if text.strip() else thought)

    def marked(self, mark: str) -> Message:
        """Replace the text that the answer continues by the placeholder `mark`."""
        others = [part for part in self.message.parts if isinstance(part, Reasoning)]
        parts = (Reasoning(mark), Text("")) if self.thought else (*others, Text(mark))
        return replace(self.message, parts=parts)


def spelled(text: str, reasoning: ReasoningFormat | None) -> Sequence[str]:
    """Split a text that itself opens the reasoning at its tags; every second piece is a reasoning
    tag.

    Any other text stays one piece.
    """
    if reasoning is None or not reasoning.begins(text):
        return (text,)
    before, opens, rest = text.partition(reasoning.opens)
    thought, closes, said = rest.partition(reasoning.closes)
    return (before, opens, thought, closes, said) if closes else (before, opens, thought)
