"""The check that a template's text fits a generated turn, and the adding of generated reasoning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from gateway.prompts.chats.messages import Message, Reasoning, Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.splicing import (
    ChatHash,
    end_of,
)
from gateway.prompts.verbatim_turns.said import Said, said_in
from gateway.prompts.verbatim_turns.turn_memory import GeneratedTurn
from gateway.turn_formats.turn_format import TurnParser


def fits(
    written: Rendered,
    turn: GeneratedTurn,
    said: Said,
    parsers: Sequence[Callable[[], TurnParser]],
) -> bool:
    """Return whether the template's text has the content `said`. Each text is parsed only once.

    The second of `parsers` reads calls that a template was given as text (`forms.py`).
    """
    if turn.written and text_digest(written) == turn.written:
        return True
    marker = written.pieces[-2] if len(written.pieces) > 1 else None
    if marker == turn.last_marker and _content(written, parsers[0]()) == said:
        return True
    is_text = len(written.pieces) == 1 and bool(said.calls)
    return is_text and _content(written, parsers[1]()) == said


def text_digest(written: Rendered) -> bytes:
    """Hash a text that the template wrote. A marker and equal plain text have different hashes."""
    return ChatHash(written).read_to(end_of(written))


def _content(written: Rendered, parser: TurnParser) -> Said | None:
    return said_in([*parser.feed(written.text), *parser.end()])


def as_generated(
    chat: ChatPrompt, found: Mapping[int, GeneratedTurn], *, takes_text: bool
) -> ChatPrompt:
    """Add the generated reasoning to the turns in `found` of `chat`.

    Unless the template `takes_text` beside calls, the text of turns with calls is left out. The
    generated tokens contain it.
    """
    messages = list(chat.messages)
    for place, turn in found.items():
        if turn.said.reasoning:
            messages[place] = _reasoned(messages[place], turn.said.reasoning)
        if turn.said.calls and not takes_text:
            messages[place] = _silent(messages[place])
    return replace(chat, messages=tuple(messages))


def _silent(message: Message) -> Message:
    parts = tuple(part for part in message.parts if not isinstance(part, Text))
    return msgspec.structs.replace(message, parts=parts)


def _reasoned(message: Message, reasoning: str) -> Message:
    given = [part for part in message.parts if isinstance(part, Reasoning)]
    if given and given[0].text.strip():
        return message
    others = (part for part in message.parts if not isinstance(part, Reasoning))
    return msgspec.structs.replace(message, parts=(Reasoning(reasoning), *others))
