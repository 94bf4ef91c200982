from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.diagnosis.volatile import without_billing_header
from gateway.prompts.chats.environment import split_environment
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.pipeline.canonical import canonical_prompt, canonical_tool

HEADER = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cch=eb6c6;"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "finds",
        "parameters": {
            "type": "object",
            "properties": {
                "zone": {"type": "string", "enum": ["b", "a"], "default": {"z": 1, "a": 2}},
                "area": {"anyOf": [{"type": "null"}, {"type": "object", "title": "t"}]},
            },
            "required": ["zone", "area"],
        },
    },
}


def shuffled(value: Any) -> Any:
    """Reverse the keys of all objects, but leave lists unchanged."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(one) for one in value] if isinstance(value, list) else value


def test_keys_have_one_order_whatever_order_they_came_in() -> None:
    other = shuffled(TOOL)
    properties = other["function"]["parameters"]["properties"]
    # put back into the original order
    properties = {name: properties[name] for name in reversed(properties)}
    properties["zone"]["default"] = TOOL["function"]["parameters"]["properties"]["zone"]["default"]
    other["function"]["parameters"]["properties"] = properties
    assert json.dumps(other) != json.dumps(TOOL)
    assert json.dumps(canonical_tool(other)) == json.dumps(canonical_tool(TOOL))


def test_a_tool_as_it_is_mostly_written_stays_as_it_is() -> None:
    assert json.dumps(canonical_tool(TOOL)) == json.dumps(TOOL)


def test_what_may_say_something_keeps_its_order() -> None:
    made = canonical_tool(shuffled(TOOL))["function"]["parameters"]
    assert made == TOOL["function"]["parameters"], "the same values"
    assert list(made["properties"]) == ["area", "zone"]
    assert list(made["properties"]["zone"]["default"]) == ["a", "z"]
    assert made["properties"]["zone"]["enum"] == ["b", "a"]
    assert made["required"] == ["zone", "area"]


def test_an_argument_may_be_named_like_a_keyword() -> None:
    tool = {"properties": {"enum": {"title": "t", "type": "string"}}, "type": "object"}
    made = canonical_tool(tool)
    assert list(made["properties"]["enum"]) == ["type", "title"]


def test_the_billing_header_goes_where_a_system_text_begins_with_it() -> None:
    assert without_billing_header(f"{HEADER}\nYou are.") == "You are."
    assert without_billing_header(HEADER) == ""
    for other in ("You are.", f"You are.\n{HEADER}", f"Never send {HEADER}"):
        assert without_billing_header(other) == other


def test_no_text_but_the_system_s_is_changed() -> None:
    text = Text(f"{HEADER}\nhi")
    messages = tuple(Message(role, (text,)) for role in ("system", "user", "assistant"))
    prompt = ChatPrompt(messages, tools=[shuffled(TOOL), TOOL])
    made = canonical_prompt(prompt)
    assert isinstance(made, ChatPrompt)
    assert made.messages == (Message("system", (Text("hi"),)), *messages[1:])
    assert made.tools is not None
    assert [json.dumps(tool) for tool in made.tools][1] == json.dumps(TOOL)
    assert (
        canonical_prompt("x-anthropic-billing-header: a\nb") == "x-anthropic-billing-header: a\nb"
    )


OPENCODE = """You are opencode, an interactive CLI tool.
Here is some useful information about the environment you are running in:
<env>
  Working directory: %s
  Today's date: %s
</env>
Skills provide specialized instructions.
"""


def agents_chat(directory: str, date: str, *more: Message) -> ChatPrompt:
    system = Message("system", (Text(OPENCODE % (directory, date)),))
    return ChatPrompt((system, Message("user", (Text("Hi"),)), *more))


def test_where_an_agent_runs_begins_the_first_question() -> None:
    answer = Message("assistant", (Text("Hello"),))
    made = canonical_prompt(agents_chat("/home/a", "Sat Nov 28 2026", answer))
    other = canonical_prompt(agents_chat("/srv/b", "Sun Nov 29 2026", answer))
    assert isinstance(made, ChatPrompt)
    assert isinstance(other, ChatPrompt)
    assert made.messages[0] == other.messages[0]
    [question] = made.messages[1].parts
    assert question == Text(
        "<env>\n  Working directory: /home/a\n  Today's date: Sat Nov 28 2026\n</env>\n\nHi"
    )
    assert made.messages[2:] == (answer,)
    [system] = made.messages[0].parts
    assert system == Text(
        OPENCODE.split("<env>", maxsplit=1)[0] + "\nSkills provide specialized instructions.\n"
    )


def test_a_longer_chat_begins_as_the_shorter_one() -> None:
    short = canonical_prompt(agents_chat("/a", "today"))
    long = canonical_prompt(agents_chat("/a", "today", Message("assistant", (Text("Hello"),))))
    assert isinstance(short, ChatPrompt)
    assert isinstance(long, ChatPrompt)
    assert long.messages[: len(short.messages)] == short.messages


@pytest.mark.parametrize(
    "system",
    [
        "Write <env> tags.",
        "<env>\nnever closed",
        "see <env>\nx\n</env>",  # not at the beginning of a line
        "<environs>\nx\n</environs>",
        "plain",
    ],
)
def test_what_is_no_environment_stays_where_it_is(system: str) -> None:
    chat = ChatPrompt((Message("system", (Text(system),)), Message("user", (Text("Hi"),))))
    assert canonical_prompt(chat) == chat


def test_an_environment_that_no_question_follows_stays_where_it_is() -> None:
    alone = ChatPrompt((Message("system", (Text(OPENCODE % ("/a", "today")),)),))
    answered = ChatPrompt((*alone.messages, Message("assistant", (Text("Hello"),))))
    assert canonical_prompt(alone) == alone
    assert canonical_prompt(answered) == answered


def test_many_openings_cost_no_more_than_their_length() -> None:
    text = "<env>\n" * 200_000
    assert split_environment(text) == (text, "")
