"""The grammars of a request's free-text tools are each parsed once, and limited in number."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.dialects.responses.chats.toolset import Toolset
from gateway.dialects.responses.input_items.tool_entries import MAX_OFFERED
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_tools import MAX_TOOLS, SentTools
from gateway.prompts.chats.free_formats import MAX_LARK, FreeFormat, FreeFormats

LONG = 1000  # number of characters in each grammar


def lark(number: int) -> str:
    return f'start: "{number}" '.ljust(LONG)


def chat_tool(number: int, grammar: str) -> dict[str, Any]:
    format_ = {"type": "grammar", "grammar": {"syntax": "lark", "definition": grammar}}
    return {"type": "custom", "custom": {"name": f"t{number}", "format": format_}}


def tool(number: int, grammar: str) -> dict[str, Any]:
    format_ = {"type": "grammar", "syntax": "lark", "definition": grammar}
    return {"type": "custom", "name": f"t{number}", "format": format_}


def raw(tools: list[dict[str, Any]]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(tools))


def held_in_chat(grammars: list[str]) -> list[bool]:
    sent = SentTools.of(raw([chat_tool(*one) for one in enumerate(grammars)]))
    return ["strict" in form["function"] for form in sent.forms]


def held_in_responses(grammars: list[str]) -> list[bool]:
    toolset = Toolset.of(raw([tool(*one) for one in enumerate(grammars)]), ())
    return [one.strict for one in toolset.offered.values()]


@pytest.mark.parametrize("held", [held_in_chat, held_in_responses])
def test_the_first_are_held_and_the_others_are_shown_alone(held: Any) -> None:
    within = MAX_LARK // LONG
    many = [lark(number) for number in range(MAX_TOOLS)]
    assert held(many) == [True] * within + [False] * (MAX_TOOLS - within)
    assert held([lark(0)] * MAX_TOOLS) == [True] * MAX_TOOLS, "one grammar is read once"


def test_the_answer_says_why() -> None:
    formats = FreeFormats()
    for number in range(MAX_LARK // LONG + 1):
        one = FreeFormat(type="grammar", syntax="lark", definition=lark(number))
        said = [passed.reason for passed in formats.not_held(one, "tools[0]")]
        assert [str(MAX_LARK) in why for why in said] == [True] * (number == MAX_LARK // LONG)


def test_tools_are_counted_before_the_rest_is_read() -> None:
    wrong = {"type": "custom", "name": 1}
    spaces = [
        {"type": "namespace", "name": f"n{number}", "tools": [tool(number, "")] * 100}
        for number in range(MAX_TOOLS - 1)
    ]
    with pytest.raises(BadRequest, match=f"more than {MAX_OFFERED} tools"):
        Toolset.of(raw([*spaces, wrong]), ())
    with pytest.raises(BadRequest, match=r"name"):
        Toolset.of(raw([*spaces[: MAX_OFFERED // 100], wrong]), ())
