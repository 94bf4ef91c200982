"""The place of prompt modules in a chat: the beginning of the system message.

A placeholder stands at this place while the chat is rendered. The rendered text before the
placeholder is the head. The text after the placeholder follows the modules.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from msgspec.structs import replace as with_fields

from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.splicing import START, Place, between, end_of

_SYSTEM = ("system", "developer")


def new_mark() -> str:
    """Make a placeholder that no request can guess, of letters and digits, which templates keep."""
    return f"modules{secrets.token_hex(16)}"


def marked(chat: ChatPrompt, mark: str) -> ChatPrompt:
    """Put the placeholder at the beginning of the system message. Add that message if absent."""
    first, *others = chat.messages
    if first.role not in _SYSTEM:
        return replace(chat, messages=(Message("system", (Text(mark),)), *chat.messages))
    return replace(chat, messages=(with_fields(first, parts=_marked(first, mark)), *others))


def _marked(message: Message, mark: str) -> Sequence[object]:
    texts = [part for part in message.parts if isinstance(part, Text)]
    if not texts:
        return (Text(mark), *message.parts)
    return tuple(
        Text(mark + part.text) if isinstance(part, Text) else part for part in message.parts
    )


def divided(rendered: Rendered, mark: str) -> tuple[Rendered, Rendered]:
    """Divide a rendered chat at the placeholder, and drop it; raise BadRequest without one."""
    found = [number for number, piece in enumerate(rendered.pieces) if mark in piece]
    if len(found) != 1 or found[0] % 2 or rendered.pieces[found[0]].count(mark) != 1:
        raise BadRequest(
            "the model's chat template does not show a system message once and as it is",
            code="modules_not_served",
            param="ratoon.modules",
        )
    at = rendered.pieces[found[0]].index(mark)
    begin, after = Place(found[0], at), Place(found[0], at + len(mark))
    return between(rendered, START, begin), between(rendered, after, end_of(rendered))
