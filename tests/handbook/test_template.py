"""The shipped model's chat template writes chats, tools and calls in Hermes' format."""

from __future__ import annotations

from typing import Any

import pytest

from tests.handbook.rendering import RefusedRoleError, render

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
LISTED = (
    '<tools>\n{"type": "function", "function": {"name": "lookup", '
    '"parameters": {"type": "object"}}}\n</tools>'
)


def called(**arguments: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": "lookup", "arguments": arguments}}


def call_text(subject: str) -> str:
    inner = f'{{"name": "lookup", "arguments": {{"subject": "{subject}"}}}}'
    return f"<tool_call>\n{inner}\n</tool_call>"


SYSTEM = {"role": "system", "content": "S"}
ASKED = {"role": "user", "content": "Q"}
CALL = {"role": "assistant", "content": "", "tool_calls": [called(subject="Zoë")]}
SAID_AND_CALLED = {
    "role": "assistant",
    "content": "One moment.",
    "tool_calls": [called(subject="A"), called(subject="B")],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "4821"}
ANSWER = {"role": "assistant", "content": "4821"}

TOLD = ("user", "<tool_response>\n4821\n</tool_response>")
TWICE_TOLD = ("user", f"{TOLD[1]}\n{TOLD[1]}")


def framed(*chat: tuple[str, str]) -> str:
    return "<|begin|>" + "".join(f"<|{role}|>{text}<|end|>" for role, text in chat)


@pytest.mark.parametrize(
    ("messages", "tools", "shown"),
    [
        ([], [], framed()),
        (
            [SYSTEM, ASKED, ANSWER],
            [],
            framed(("system", "S"), ("user", "Q"), ("assistant", "4821")),
        ),
        ([ASKED], [TOOL], framed(("system", LISTED), ("user", "Q"))),
        (
            [{"role": "system", "content": ""}, ASKED],
            [TOOL],
            framed(("system", LISTED), ("user", "Q")),
        ),
        (
            [SYSTEM, ASKED, CALL, RESULT, ANSWER],
            [TOOL],
            framed(
                ("system", f"S\n\n{LISTED}"),
                ("user", "Q"),
                ("assistant", call_text("Zoë")),
                TOLD,
                ("assistant", "4821"),
            ),
        ),
        (
            [ASKED, SAID_AND_CALLED, RESULT, RESULT],
            [],
            framed(
                ("user", "Q"),
                ("assistant", f"One moment.\n{call_text('A')}\n{call_text('B')}"),
                TWICE_TOLD,
            ),
        ),
    ],
    ids=["nothing", "plain", "tools", "an empty system message", "a loop", "two calls"],
)
def test_chats_are_written_in_hermes_form(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], shown: str
) -> None:
    assert render(messages, tools) == shown
    assert render(messages, tools, add_generation_prompt=True) == shown + "<|assistant|>"


def test_a_developer_message_is_shown_as_a_system_message_and_other_roles_are_refused() -> None:
    developer = {"role": "developer", "content": "S"}
    assert render([developer, ASKED], [TOOL]) == render([SYSTEM, ASKED], [TOOL])
    with pytest.raises(RefusedRoleError):
        render([{"role": "critic", "content": "S"}])


def test_arguments_may_be_json_in_a_string() -> None:
    spelled = called() | {"function": {"name": "lookup", "arguments": '{"subject": "Zoë"}'}}
    as_text = {"role": "assistant", "content": None, "tool_calls": [spelled]}
    assert render([ASKED, as_text], [TOOL]) == render([ASKED, CALL], [TOOL])
