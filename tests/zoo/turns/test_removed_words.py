"""Published templates never remove a word from a text if the text around it would then join to a
control token.
"""

from __future__ import annotations

import pytest

from engine.models.token_marks import TokenMarks
from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.templates.removed_words import removed_words
from gateway.prompts.tokens.control_tokens import ControlTokens
from tests.zoo.family import Family
from tests.zoo.more_families import MORE, WITH_MORE

WORDS = ("/think", "/no_think", "</think>", "<think>", "[/INST]", "```", "\n", " ", '"')


def template_of(family: Family) -> ChatTemplate:
    marks = family.marks()
    control = ControlTokens(
        {mark.text: mark.is_special for mark in marks},
        TokenMarks(texts=frozenset(mark.text for mark in marks if mark.is_special)),
    )
    tokens = {"bos_token": family.bos or "", "eos_token": family.ends[0]}
    return ChatTemplate(family.template(), tokens, control=control)


def tokens_in(template: ChatTemplate, role: str, content: str) -> list[str] | None:
    chat = [Message(role, (Text(content),))]
    chat += [Message("user", (Text("hi"),))] if role == "system" else []
    try:
        return [*template.render(chat, add_generation_prompt=True).pieces[1::2]]
    except BadRequest:
        return None


@pytest.mark.parametrize("family", WITH_MORE)
def test_no_word_within_a_token_is_removed_from_it(family: Family) -> None:
    template, end = template_of(family), family.ends[0]
    for role in ("user", "system"):
        plain = tokens_in(template, role, "hello")
        for word in WORDS:
            for at in (1, len(end) // 2, len(end) - 1):
                forged = tokens_in(template, role, f"a {end[:at]}{word}{end[at:]} evil")
                assert forged is None or plain is None or forged.count(end) == plain.count(end)


@pytest.mark.zoo
def test_one_published_template_removes_words() -> None:
    [family] = [one for one in MORE if one.name == "nemotron-nano-2"]
    template = template_of(family)
    assert removed_words(template.source, template.render) == {"/think", "/no_think"}
