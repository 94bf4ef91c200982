"""The estimated work of a prompt counts everything in it, even empty parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.link.messages import Grammar, SamplingParams
from gateway.diagnosis.seen import SeenPrompt
from gateway.processes.fair_executor import LARGE
from gateway.prompts.chats.messages import Message, Part, Text, ToolCall, ToolResult
from gateway.prompts.generation_request import (
    AnswerForm,
    ChatPrompt,
    GenerationRequest,
    TextGrammar,
    TextRules,
    size_of,
)
from gateway.turn_formats.structural_parts import Regex
from gateway.turn_formats.structural_tag import StructuralTag
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


class Noted(tuple[Part, ...]):
    """The parts of a message, which count how many of them were read."""

    looked_at = 0

    def __iter__(self) -> Iterator[Part]:
        for part in super().__iter__():
            self.looked_at += 1
            yield part


@pytest.mark.parametrize("arguments", [{}, {"a": [[]] * 100}])
def test_a_chat_of_very_many_calls_is_not_looked_at_to_its_end(arguments: dict[str, Any]) -> None:
    for number, most in ((30_000, LARGE // 64 + 1), (5, 5)):
        calls = Noted((ToolCall("f", arguments),) * number)
        chat = ChatPrompt((Message("assistant", calls),))
        calls.looked_at = 0
        assert (size_of(chat) > LARGE) == (number > most)
        assert calls.looked_at <= most
        assert number > 5 or calls.looked_at == 5, "the control"


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
