"""A chat that continues the tokens of earlier turns exactly, thoughts included.

Templates that drop thoughts write earlier turns anew with each request. Some of these turns differ
from the model's own. If a client or the operator wants thoughts kept, the prompt keeps the earlier
tokens up to the last remembered turn. Only the messages after this turn are rendered.
`prompt_tokens.py` decides when thoughts are kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from gateway.prompts.chats.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.splicing import (
    START,
    Place,
    Splice,
    SplicedChat,
    before_control,
    between,
    end_of,
)
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.prompts.verbatim_turns.turn_memory import GeneratedTurn

Render = Callable[[ChatPrompt], Rendered]
Find = Callable[[bytes], GeneratedTurn | None]


class Marks(NamedTuple):
    """The control tokens that delimit a turn, and a function that finds where an answer begins."""

    ends: frozenset[str]
    own: frozenset[str]  # control tokens that a model writes within a remembered turn
    begin: Callable[[Rendered], Place]

    def closes(self, token: str) -> bool:
        """Return whether `token` comes after the end of a turn's text."""
        return token in self.ends or token not in self.own


def continued(
    chat: ChatPrompt, keys: Mapping[int, bytes], find: Find, render: Render, marks: Marks
) -> SplicedChat | None:
    """Render `chat` after the tokens up to its last remembered turn; None without such a turn.

    `keys` are the keys of turns, by the turns' indices in the chat. Raises the errors of `render`.
    """
    for place in sorted(keys, reverse=True):
        known = _tokens_to(keys[place], find)
        if known is None:
            continue
        rendered = render(_without_thoughts(chat, place + 1))
        end = _end_of_turn(chat, place, rendered, render, marks)
        if end is None:
            return None
        return SplicedChat(rendered, (Splice(START, end, known),), keys[place])
    return None


def _tokens_to(key: bytes, find: Find) -> TokenIds | None:
    """Join all tokens up to the end of a turn, if each turn on the way is remembered."""
    parts: list[TokenIds] = []
    at: bytes | None = key
    while at is not None:
        turn = find(at)
        if turn is None or turn.since is None:
            return None
        parts += [turn.token_ids, turn.since]
        at = turn.parent
    return np.concatenate(parts[::-1])


def _end_of_turn(
    chat: ChatPrompt, place: int, rendered: Rendered, render: Render, marks: Marks
) -> Place | None:
    """Find the end of the turn, before the turn's end token, or return None."""
    whole = render(_ending(chat, place + 1, asks=False))
    end = _before_end(whole, marks)
    if _begins_with(rendered, end, whole):
        return end
    # the turn may follow the text that asks for an answer, as the answer did
    asked = render(_ending(chat, place, asks=True))
    begin = marks.begin(asked)
    if _begins_with(rendered, begin, asked):
        return before_control(rendered, begin, marks.ends)
    # Later messages have changed the text before the turn. A small change in the turn shows its
    # end.
    other = render(_without_thoughts(_changed(chat, place), place + 1))
    found = _end_of_change(rendered, other, marks)
    if found is None or not _shows(between(rendered, found, end_of(rendered)), chat, place + 1):
        return None
    return found


def _before_end(whole: Rendered, marks: Marks) -> Place:
    """Find the end of the last turn's text, before a token that closes the turn."""
    pieces = whole.pieces
    is_closed = len(pieces) > 1 and marks.closes(pieces[-2]) and not pieces[-1].strip()
    return Place(len(pieces) - 3, len(pieces[-3])) if is_closed else end_of(whole)


def _changed(chat: ChatPrompt, place: int) -> ChatPrompt:
    """Add a little text at the end of a turn: in its last call, or in its text."""
    *before, last = chat.messages[place].parts
    more: Part = Text(".")
    if isinstance(last, ToolCall):
        more = msgspec.structs.replace(last, arguments={**last.arguments, "_": 0})
    elif isinstance(last, Text):
        more = Text(f"{last.text}.")
    turn = msgspec.structs.replace(chat.messages[place], parts=(*before, more))
    others = (*chat.messages[:place], turn, *chat.messages[place + 1 :])
    return replace(chat, messages=others)


def _end_of_change(rendered: Rendered, other: Rendered, marks: Marks) -> Place | None:
    """Find the first control token after the last difference and outside the turn.

    Returns None if there is no difference, or if no such token follows.
    """
    pieces = rendered.pieces
    pairs = zip(reversed(pieces), reversed(other.pieces), strict=False)
    same = next((count for count, (one, two) in enumerate(pairs) if one != two), len(pieces))
    after = range(len(pieces) - same, len(pieces))
    number = next((at for at in after if at % 2 and marks.closes(pieces[at])), None)
    if same == len(pieces) or number is None:
        return None
    return Place(number - 1, len(pieces[number - 1]))


def _shows(rendered: Rendered, chat: ChatPrompt, begin: int) -> bool:
    texts = (
        part.text if isinstance(part, Text | ToolResult) else part.name
        for message in chat.messages[begin:]
        for part in message.parts
        if not isinstance(part, Reasoning)
    )
    return all(text.strip() in rendered.text for text in texts)


def _ending(chat: ChatPrompt, length: int, *, asks: bool) -> ChatPrompt:
    begun = replace(chat, add_generation_prompt=asks, continue_final_message=False)
    return _without_thoughts(replace(begun, messages=chat.messages[:length]), length)


def _without_thoughts(chat: ChatPrompt, length: int) -> ChatPrompt:
    first = tuple(map(_silent, chat.messages[:length]))
    return replace(chat, messages=(*first, *chat.messages[length:]))


def _silent(message: Message) -> Message:
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    return message if parts == message.parts else msgspec.structs.replace(message, parts=parts)


def _begins_with(rendered: Rendered, end: Place, other: Rendered) -> bool:
    if len(rendered.pieces) <= end.piece:
        return False
    wanted: Sequence[str] = between(other, START, end).pieces
    found = rendered.pieces[: end.piece + 1]
    return found[:-1] == wanted[:-1] and found[-1].startswith(wanted[-1])
