"""The check that a template's text fits a generated turn, and the adding of generated reasoning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from gateway.prompts.chats.messages import Message, Reasoning
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
    written: Rendered, turn: GeneratedTurn, parsers: Sequence[Callable[[], TurnParser]]
) -> bool:
    """Return whether the template's text has the turn's content. Each text is parsed only once.

    The second of `parsers` reads calls that a template was given as text (`forms.py`).
    """
    if turn.written and text_digest(written) == turn.written:
        return True
    if _says(written, turn, parsers[0]()):
        return True
    is_text = len(written.pieces) == 1 and bool(turn.said.calls)
    return is_text and _content(written, parsers[1]()) == turn.said


def text_digest(written: Rendered) -> bytes:
    """Hash a text that the template wrote. A marker and equal plain text have different hashes."""
    return ChatHash(written).read_to(end_of(written))


def _says(written: Rendered, turn: GeneratedTurn, parser: TurnParser) -> bool:
    marker = written.pieces[-2] if len(written.pieces) > 1 else None
    if marker != turn.last_marker:
        return False
    return _content(written, parser) == turn.said


def _content(written: Rendered, parser: TurnParser) -> Said | None:
    return said_in([*parser.feed(written.text), *parser.end()])


def with_reasoning(chat: ChatPrompt, found: Mapping[int, GeneratedTurn]) -> ChatPrompt:
    """Add the generated reasoning to the turns in `found` of `chat`."""
    messages = list(chat.messages)
    for place, turn in found.items():
        if turn.said.reasoning:
            messages[place] = _reasoned(messages[place], turn.said.reasoning)
    return replace(chat, messages=tuple(messages))


def _reasoned(message: Message, reasoning: str) -> Message:
    given = [part for part in message.parts if isinstance(part, Reasoning)]
    if given and given[0].text.strip():
        return message
    others = (part for part in message.parts if not isinstance(part, Reasoning))
    return msgspec.structs.replace(message, parts=(Reasoning(reasoning), *others))
