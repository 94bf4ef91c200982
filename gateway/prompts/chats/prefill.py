"""The prefill: an assistant's message at the end of a chat, which the model's answer continues.

A template may trim or drop a last message, or end the turn after it. The template therefore renders
a placeholder instead of the message. The prompt is the rendered text before the placeholder, and
then the message as it was sent.
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

    `thought` is the message's reasoning, if the answer continues the reasoning. `text` is empty in
    this case.
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
    """If `text` begins with reasoning, split it at the reasoning's tags.

    Every second piece is then a tag. Any other text stays one piece.
    """
    if reasoning is None or not reasoning.begins(text):
        return (text,)
    before, opens, rest = text.partition(reasoning.opens)
    thought, closes, said = rest.partition(reasoning.closes)
    return (before, opens, thought, closes, said) if closes else (before, opens, thought)
