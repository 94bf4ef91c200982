from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from handbook.training.hermes import ToolMessage, written
from handbook.training.tool_chats import make_tool_chat
from tests.handbook.rendering import render

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
LISTED = (
    '<tools>\n{"type": "function", "function": {"name": "lookup", '
    '"parameters": {"type": "object"}}}\n</tools>'
)


def called(**arguments: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": "lookup", "arguments": arguments}}


ASKED: ToolMessage = {"role": "user", "content": "Q"}
CALL: ToolMessage = {"role": "assistant", "content": "", "tool_calls": [called(subject="Zoë")]}
SAID_AND_CALLED: ToolMessage = {
    "role": "assistant",
    "content": "One moment.",
    "tool_calls": [called(subject="A"), called(subject="B")],
}
RESULT: ToolMessage = {"role": "tool", "tool_call_id": "1", "content": "4821"}
ANSWER: ToolMessage = {"role": "assistant", "content": "4821"}
SYSTEM: ToolMessage = {"role": "system", "content": "S"}


def framed(chat: list[tuple[str, str]]) -> str:
    return "<|begin|>" + "".join(f"<|{role}|>{text}<|end|>" for role, text in chat)


def test_a_loop_in_hermes_form() -> None:
    assert written([SYSTEM, ASKED, CALL, RESULT, ANSWER], [TOOL]) == [
        ("system", f"S\n\n{LISTED}"),
        ("user", "Q"),
        (
            "assistant",
            '<tool_call>\n{"name": "lookup", "arguments": {"subject": "Zoë"}}\n</tool_call>',
        ),
        ("user", "<tool_response>\n4821\n</tool_response>"),
        ("assistant", "4821"),
    ]


@pytest.mark.parametrize("tools", [[], [TOOL], [TOOL, TOOL]], ids=["none", "one", "two"])
@pytest.mark.parametrize(
    "messages",
    [
        [ASKED],
        [SYSTEM, ASKED, CALL, RESULT, ANSWER],
        [ASKED, SAID_AND_CALLED, RESULT, RESULT, ANSWER, ASKED, CALL, RESULT],
        [{"role": "system", "content": ""}, ASKED],
        [SYSTEM, SYSTEM, ASKED],
        [],
    ],
    ids=["bare", "loop", "two calls", "an empty system message", "two of them", "nothing"],
)
def test_the_template_writes_the_same(
    messages: list[ToolMessage], tools: list[dict[str, object]]
) -> None:
    chat = written(messages, tools)
    assert render(messages, tools) == framed(chat)
    assert render(messages, tools, add_generation_prompt=True) == framed(chat) + "<|assistant|>"


@pytest.mark.parametrize("seed", range(40))
def test_the_template_writes_generated_chats_the_same(
    shipped_tokenizer: Tokenizer, seed: int
) -> None:
    chat = make_tool_chat(seed, facts=seed % 7, turns=4)
    assert render(chat.messages, chat.schemas) == framed(written(chat.messages, chat.schemas))


def test_a_developer_message_lists_the_tools_as_a_system_message_does() -> None:
    developer = {"role": "developer", "content": "S"}
    assert render([developer, ASKED], [TOOL]) == render([SYSTEM, ASKED], [TOOL])


def test_arguments_may_be_json_in_a_string() -> None:
    spelled = called() | {"function": {"name": "lookup", "arguments": '{"subject": "Zoë"}'}}
    as_text = {"role": "assistant", "content": None, "tool_calls": [spelled]}
    assert render([ASKED, as_text], [TOOL]) == render([ASKED, CALL], [TOOL])


def test_a_call_is_json() -> None:
    [_, _, (_, text), *_] = written([SYSTEM, ASKED, CALL], [TOOL])
    inner = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert json.loads(inner) == {"name": "lookup", "arguments": {"subject": "Zoë"}}
