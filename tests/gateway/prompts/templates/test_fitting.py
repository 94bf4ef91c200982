from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, get_args, get_type_hints

import pytest
from msgspec.structs import asdict, replace

from gateway.prompts.chats.messages import Message, Text, ToolCall, ToolResult
from gateway.prompts.chats.traits import TemplateTraits
from gateway.prompts.templates.fitting import fitted
from gateway.prompts.templates.shapes import kinds_of
from tests.gateway.prompts.templates.chats import (
    CALLING,
    PLAIN,
    WORD,
    ends_of_turns,
    messages,
    words,
)


def _other_values() -> Iterator[dict[str, Any]]:
    """Yield traits of a template, each with one trait other than its default."""
    defaults = asdict(TemplateTraits())
    for name, hint in get_type_hints(TemplateTraits).items():
        values = (True, False) if hint is bool else get_args(hint)
        yield from ({name: value} for value in values if value != defaults[name])


EACH = list(_other_values())
PAIRS = [one | other for one, other in combinations(EACH, 2) if one.keys() != other.keys()]
STRICT = {
    "leading_system": "none",
    "later_system": False,
    "users_in_a_row": False,
    "assistants_in_a_row": False,
    "assistant_first": False,
    "calls_first": False,
    "user_after_result": False,
}
ALL = [TemplateTraits(**values) for values in ({}, *EACH, *PAIRS, STRICT)]
# The traits with which all texts stay in the prompt. A text within a thought disappears with it.
LASTING = [one for one in ALL if one.text_beside_calls != "thought"]


def said(chat: Sequence[Message]) -> str:
    parts = [part for message in chat for part in message.parts]
    texts = (json.dumps(one.arguments) if isinstance(one, ToolCall) else one.text for one in parts)
    return "\n".join(texts)


def test_results_come_after_the_first_call_of_their_id() -> None:
    calls = tuple(ToolCall("f", {"at": at}, one) for at, one in enumerate("aba"))
    results = [Message("tool", (ToolResult(one, one),)) for one in "bcaa"]
    chat = [Message("user", (Text("Go."),)), Message("assistant", calls), *results]
    fits = fitted(chat, TemplateTraits(calls="one"))
    assert re.findall(r"\d|^\w$", said(fits[1:]), re.MULTILINE) == [
        "0",
        "a",
        "a",
        "1",
        "b",
        "2",
        "c",
    ]


def test_many_turns_of_one_role_become_one() -> None:
    chat = [Message("user", (Text(f"w{number}."),)) for number in range(4000)]
    [one] = fitted(chat, TemplateTraits(users_in_a_row=False))
    assert said([one]).split() == [f"w{number}." for number in range(4000)]


def test_a_blank_text_is_like_another() -> None:
    [long] = kinds_of([Message("user", (Text(" " * 100_000),))])
    [short] = kinds_of([Message("user", (Text(" " * 16),))])
    assert long == short != kinds_of([Message("user", (Text(""),))])[0]


@pytest.mark.parametrize("spelled", [*PLAIN, *CALLING])
def test_nothing_is_lost_whatever_a_template_takes(spelled: str) -> None:
    chat = messages(spelled)
    thoughts = spelled.count("r")
    for traits in ALL:
        fits = said(fitted(chat, traits))
        assert sorted(WORD.findall(fits)) == sorted(words(spelled)), traits
        assert fits.count("thought") == thoughts, traits
    assert said(fitted(chat, TemplateTraits())) == said(fitted(messages(spelled), ALL[0]))


@pytest.mark.parametrize("spelled", [*PLAIN, *CALLING])
def test_a_chat_that_goes_on_begins_as_it_began(spelled: str) -> None:
    """Keep the prompt's beginning when a chat goes on.

    A turn that is joined to the previous turn continues where that turn ended.
    """
    chat = messages(spelled)
    for traits in LASTING:
        whole = fitted(chat, traits)
        for end in ends_of_turns(spelled):
            begun = fitted(chat[:end], traits)
            assert whole[: len(begun) - 1] == begun[:-1], (traits, end)
            last = whole[len(begun) - 1]
            assert last == begun[-1] or said([last]).startswith(said(begun[-1:])), (traits, end)


@pytest.mark.parametrize("spelled", ["u", "s u a u", "u ac t a u", "s u arc t", "u acx t"])
def test_a_template_that_takes_all_is_given_what_was_sent(spelled: str) -> None:
    chat = messages(spelled)
    named = [replace(one, name="get_weather") if one.role == "tool" else one for one in chat]
    assert fitted(chat, TemplateTraits()) == named
