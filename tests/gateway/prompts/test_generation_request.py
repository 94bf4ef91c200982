"""How much work a prompt is: all that it brings counts, though it says nothing."""

from __future__ import annotations

import pytest

from gateway.diagnosis.seen import SeenPrompt
from gateway.prompts.generation_request import ChatPrompt, size_of
from gateway.prompts.messages import Message, Text, ToolCall, ToolResult

LONG = "x" * 5000
NOTHING = Message("user", (Text(""),))


@pytest.mark.parametrize(
    "chat",
    [
        ChatPrompt((NOTHING,) * 100),
        ChatPrompt((Message("user", (Text(""),), name=LONG),)),
        ChatPrompt((Message("tool", (ToolResult("", LONG),)),)),
        ChatPrompt((Message("assistant", (ToolCall("f", {}, LONG),)),)),
        ChatPrompt((Message("assistant", (ToolCall("f", {"a": LONG}),)),)),
        ChatPrompt((NOTHING,), variables={"a": LONG}),
        ChatPrompt((NOTHING,), variables={LONG: True}),
        ChatPrompt((Message("user", (Text(LONG),)),)),
    ],
)
def test_all_that_a_chat_brings_counts(chat: ChatPrompt) -> None:
    assert size_of(chat) >= 5000
    assert size_of(ChatPrompt((NOTHING,))) < 200, "the control"


def test_a_prompt_that_is_remembered_counts_its_effort() -> None:
    short, long = (SeenPrompt("r", b"", (), False, b"", None, b"", effort=e) for e in ("x", LONG))
    assert long.size - short.size == 4 * (len(LONG) - 1), "four bytes each, as an emoji has"
