"""The work of a prompt: all that it brings counts, though it says nothing."""

from __future__ import annotations

import pytest

from engine.link.messages import Grammar, SamplingParams
from gateway.diagnosis.seen import SeenPrompt
from gateway.prompts.chats.messages import Message, Text, ToolCall, ToolResult
from gateway.prompts.generation_request import (
    AnswerForm,
    ChatPrompt,
    GenerationRequest,
    TextGrammar,
    TextRules,
    size_of,
)
from gateway.turn_formats.structural_tag import Regex, StructuralTag
from gateway.turn_formats.turn_format import ToolSpec

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
        ChatPrompt((NOTHING,), later_tools=(ToolSpec("f", {"description": LONG}),)),
        ChatPrompt((Message("user", (Text(LONG),)),)),
    ],
)
def test_all_that_a_chat_brings_counts(chat: ChatPrompt) -> None:
    assert size_of(chat) >= 5000
    assert size_of(ChatPrompt((NOTHING,))) < 200, "the control"


@pytest.mark.parametrize("text", [Grammar("regex", LONG), StructuralTag(Regex(LONG))])
def test_the_text_of_a_form_counts(text: TextGrammar) -> None:
    def size(form: AnswerForm) -> int:
        sampling = SamplingParams(max_tokens=1)
        return GenerationRequest(
            "r", ("a", "b"), 1, sampling, max_tokens_may_shrink=False, text=TextRules(), form=form
        ).size

    assert size(AnswerForm(text=text)) >= 2 + len(LONG)
    assert size(AnswerForm()) == 2, "the control"


def test_a_prompt_that_is_remembered_counts_its_effort() -> None:
    short, long = (SeenPrompt("r", b"", (), False, b"", None, b"", effort=e) for e in ("x", LONG))
    assert long.size - short.size == 4 * (len(LONG) - 1), "four bytes each, as an emoji has"
