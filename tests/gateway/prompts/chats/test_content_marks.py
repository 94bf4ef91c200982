"""Break characters divide all control tokens that a text spells.

A request with too many control tokens is refused.
"""

from __future__ import annotations

import pytest

from gateway.errors import BadRequest
from gateway.prompts.chats.content_marks import MOST, ContentMarks, Given
from gateway.prompts.chats.messages import Message, Reasoning, Text
from gateway.prompts.tokens.control_tokens import ControlTokens

END = "<|end|>"


def given(name: str, thought: str) -> Given:
    parts = (Reasoning(thought), Text("hi"))
    return {"messages": [Message("assistant", parts, name)], "tools": None}


def marks() -> ContentMarks:
    return ContentMarks(ControlTokens({END: True}))


@pytest.mark.parametrize("times", [(MOST, 1), (1, MOST), (2 * MOST, 0)])
def test_more_than_could_be_shown_are_refused_wherever_they_stand(times: tuple[int, int]) -> None:
    with pytest.raises(BadRequest, match="control tokens"):
        marks().mark_for(given(END * times[0], END * times[1]))


def test_as_many_as_that_are_marked() -> None:
    """Accept the largest allowed number of control tokens (positive control)."""
    asked = given(END * (MOST - 1), END)
    mark = marks().mark_for(asked)
    [message] = marks().marked(asked, mark, near=False)["messages"]
    assert message.name is not None
    assert END not in message.name
    assert message.name.replace(mark, "") == END * (MOST - 1)


def test_a_tool_keeps_its_form_where_its_fields_are_near_tokens() -> None:
    """Keep a tool's form when its fields resemble control tokens.

    Such a tool once ended the start with a KeyError, in Seed-OSS's published template.
    """
    near = ContentMarks(ControlTokens({"</function>": True, "<parameters>": True}))
    function = {"name": "function", "parameters": {"function": "</function>"}}
    asked = {"messages": [], "tools": [{"type": "function", "function": function}]}
    mark = near.mark_for(asked)
    [tool] = near.marked(asked, mark, near=True)["tools"]
    assert tool["type"] == "function"
    assert tool["function"].keys() == function.keys()
    assert tool["function"]["name"] == f"f{mark}unction"
    assert "</function>" not in str(tool["function"]["parameters"])
    assert mark in next(iter(tool["function"]["parameters"]))
