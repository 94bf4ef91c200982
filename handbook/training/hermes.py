"""Chats with tools in the chat template's form: each message's role and text.

The form is Hermes, as in Qwen2.5 and Qwen3. Tools are JSON in the system message, a call is JSON in
the assistant's text, and results are in the user's turn. The markers are plain text, without tokens
of their own in the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

ToolMessage: TypeAlias = dict[str, Any]
"""A message in the form of OpenAI's API, except that arguments of calls are objects."""


def written(
    messages: Sequence[ToolMessage], tools: Sequence[Mapping[str, Any]] = ()
) -> list[tuple[str, str]]:
    """Return roles and texts as `CHAT_TEMPLATE` writes them.

    Adjacent tool results share a text.
    """
    chat: list[tuple[str, str]] = []
    if tools and (not messages or messages[0]["role"] != "system"):
        chat.append(("system", _listed(tools)))
    was_result = False
    for number, message in enumerate(messages):
        role, text = message["role"], message.get("content") or ""
        if role == "system" and number == 0 and tools:
            text = f"{text}\n\n{_listed(tools)}" if text else _listed(tools)
        elif role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
        calls = [call_text(**call["function"]) for call in message.get("tool_calls", ())]
        text = "\n".join([text, *calls] if text else calls)
        if role == "tool" and was_result:
            text = f"{chat.pop()[1]}\n{text}"
        chat.append(("user" if role == "tool" else role, text))
        was_result = role == "tool"
    return chat


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call in the model's format."""
    call = f'{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def _listed(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"<tools>\n{listed}\n</tools>"
