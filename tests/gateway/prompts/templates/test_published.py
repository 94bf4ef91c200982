"""Published templates show every message once, in order.

The chats are of kinds that clients send, and that some family's template refuses, drops or
reorders.
"""

from __future__ import annotations

from functools import cache

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.errors import BadRequest
from gateway.prompts.chats.forms import Tool
from gateway.prompts.templates.chat_template import ChatTemplate
from tests.examples import in_the_zoo
from tests.gateway.prompts.templates.chats import (
    CALLING,
    PLAIN,
    TOOLS,
    WORD,
    called,
    messages,
    returned,
    sent,
    words,
)
from tests.zoo.families import FAMILIES
from tests.zoo.family import Family
from tests.zoo.more_families import MORE

# Without Hunyuan, whose template cannot render empty texts.
_MORE = [one for one in MORE if one.name != "vllm-hunyuan_a13b"]
ALL = [*FAMILIES, *in_the_zoo(*_MORE)]
CALLING_ALL = [one for one in FAMILIES if one.tools]
CALLING_ALL += in_the_zoo(*(one for one in _MORE if one.tools))


@cache
def template_of(one: Family) -> ChatTemplate:
    return ChatTemplate(one.template(), {"eos_token": one.ends[0], "bos_token": one.bos or ""})


def prompt(one: Family, spelled: str, tools: list[Tool] | None = None) -> str:
    template, chat = template_of(one), messages(spelled)
    template.check(chat, add_generation_prompt=True, tools=tools)
    return template.render(chat, add_generation_prompt=True, tools=tools).text


@pytest.mark.parametrize("one", ALL, ids=str)
def test_what_is_said_is_shown(one: Family) -> None:
    for spelled in PLAIN:
        assert WORD.findall(prompt(one, spelled)) == words(spelled), spelled


@pytest.mark.parametrize("one", ALL, ids=str)
def test_what_is_called_is_shown_and_what_returned_after_it(one: Family) -> None:
    """Show calls before their results: all results in the order of the calls, or each after its own
    call.
    """
    for spelled in CALLING:
        shown = WORD.findall(prompt(one, spelled, TOOLS if one.tools else None))
        assert sorted(shown) == sorted(words(spelled)), spelled
        results, calls = returned(spelled), called(spelled)
        others = [word for word in words(spelled) if word not in (*results, *calls)]
        assert [word for word in shown if word in others] == others, spelled
        assert [word for word in shown if word in calls] == list(calls), spelled
        assert all(shown.index(call) < shown.index(word) for word, call in results.items())


def _as_transformers(one: Family, spelled: str, tools: list[Tool] | None) -> str:
    """Render a chat as transformers does; return "" if the template refuses it."""
    try:
        (text,), _ = render_jinja_template(
            [sent(spelled)],
            chat_template=one.template(),
            tools=tools,
            add_generation_prompt=True,
            eos_token=one.ends[0],
            bos_token=one.bos or "",
        )
    except (TemplateError, TypeError):
        return ""
    return str(text)


@pytest.mark.parametrize("one", CALLING_ALL, ids=str)
def test_a_chat_that_a_template_takes_is_rendered_as_transformers_does(one: Family) -> None:
    for spelled in ("u", "s u", "s u a u"):
        for tools in (None, TOOLS):
            theirs = _as_transformers(one, spelled, tools)
            shows_tools = TOOLS[0]["function"]["description"] in theirs
            if WORD.findall(theirs) == words(spelled) and shows_tools == bool(tools):
                assert prompt(one, spelled, tools) == theirs


def test_a_message_that_a_template_never_shows_is_named() -> None:
    forgets = ChatTemplate("{{ messages[0].content }}", {})
    forgets.check(messages("u"), add_generation_prompt=True)
    with pytest.raises(BadRequest) as refused:
        forgets.check(messages("u a u"), add_generation_prompt=True)
    assert refused.value.param == "messages[1]"


@pytest.mark.parametrize("one", CALLING_ALL, ids=str)
def test_a_tool_may_have_no_more_than_a_name(one: Family) -> None:
    for more in ({}, {"description": None, "parameters": None}, {"description": "Tells it."}):
        tools = [*TOOLS, {"type": "function", "function": {"name": "get_date", **more}}]
        shown = prompt(one, "u", tools)
        if "get_weather" in shown:  # R1 Distill's template shows no tools
            assert "get_date" in shown, more
