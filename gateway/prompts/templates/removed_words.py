"""The words that a chat template removes from a message, found by rendering small chats.

Nemotron Nano 2 is switched by `/think` in a user's text, and its template removes the word. What
stood before and after the word could then join to a control token (`content_marks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jinja2.nodes

from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Text, ToolCall, ToolResult
from gateway.prompts.templates.sandbox import environment
from gateway.prompts.tokens.control_tokens import Rendered

_MOST_CHARS = 64
_BEFORE, _BEHIND = "qzv", "vzq"  # letters around a word, which no template knows
_ASKED = Message("user", (Text("hi"),))
_CALL = Message("assistant", (ToolCall("f", {}, "abcdefgh1"),))


def removed_words(source: str, render: Callable[..., Rendered]) -> frozenset[str]:
    """Return the words that a template with this source removes from some text of a chat."""
    return frozenset(word for word in _named(source) if _is_removed(word, render))


def _named(source: str) -> set[str]:
    """Return the strings that the template passes to its filters, methods and macros."""
    tree = environment().parse(source)
    given = [one for call in tree.find_all(jinja2.nodes.Call) for one in call.args]
    given += [one for used in tree.find_all(jinja2.nodes.Filter) for one in used.args]
    values = (one.value for one in given if isinstance(one, jinja2.nodes.Const))
    texts = (value for value in values if isinstance(value, str))
    return {text for text in texts if text.strip() and len(text) <= _MOST_CHARS}


def _is_removed(word: str, render: Callable[..., Rendered]) -> bool:
    for chat in _chats(_BEFORE + word + _BEHIND):
        try:
            text = render(chat, add_generation_prompt=True).text
        except BadRequest:
            continue
        if _BEFORE + _BEHIND in text:
            return True
    return False


def _chats(text: str) -> Iterator[list[Message]]:
    yield [Message("user", (Text(text),))]
    yield [Message("system", (Text(text),)), _ASKED]
    yield [_ASKED, Message("assistant", (Text(text),)), _ASKED]
    yield [_ASKED, _CALL, Message("tool", (ToolResult(text, "abcdefgh1"),))]
