"""Thoughts that a template would drop are kept, so that the prompt continues the earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.gateway.served import MODEL
from tests.gateway.prompts.templates.chats import TOOLS
from tests.zoo.families import family
from tests.zoo.gateways import ZooGateway, zoo_gateway

KEPT = {"chat_template_kwargs": {"preserve_thinking": True}}
CALL = {
    "deepseek_v3": (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function"
        '<\uff5ctool\u2581sep\uff5c>get_time\n```json\n{"city":"Oslo"}\n```'
        "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>"
    ),
    "hermes": '<tool_call>\n{"name": "get_time", "arguments": {"city":"Oslo"}}\n</tool_call>',
}
NAMES = ("r1-distill-qwen", "deepseek-v3", "qwen3")


def ask(zoo: ZooGateway, chat: list[Any], **fields: Any) -> Any:
    tools: Any = TOOLS
    answer = zoo.client.chat.completions.create(
        model=MODEL, messages=chat, tools=tools, extra_body=fields
    )
    return answer.choices[0].message


def sent_back(message: Any) -> dict[str, Any]:
    """Return the assistant message as a client sends it back that drops thoughts and respells
    arguments.
    """
    said = message.to_dict()
    said.pop("reasoning_content", None)
    said.pop("reasoning", None)
    for call in said.get("tool_calls") or ():
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
    return dict(said)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keeps", [True, False])
def test_a_request_keeps_what_was_thought(name: str, keeps: bool, tmp_path: Path) -> None:
    one, options = family(name), KEPT if keeps else {}
    with zoo_gateway(one, tmp_path) as zoo:
        chat: list[Any] = [{"role": "user", "content": "What time is it?"}]
        written = f"<think>\nOslo, surely.\n</think>\n\n{CALL[str(one.tools)]}"
        # the text that the prompt itself already opens
        opened = "" if name == "qwen3" else "<think>\n"
        zoo.says(written.removeprefix(opened))
        call = ask(zoo, chat, **options)
        before = zoo.prompt()
        result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Noon there."}
        chat += [sent_back(call), result]
        zoo.says("<think>\nSo noon.\n</think>\n\nIt is noon.")
        said = ask(zoo, chat, **options)
        after_call = zoo.prompt()
        chat += [sent_back(said), {"role": "user", "content": "And in Rome?"}]
        ask(zoo, chat, **options)
        after_question = zoo.prompt()
    for thought in ("Oslo, surely.", "So noon."):
        assert after_question.count(thought) == keeps
    for text in ("What time is it?", "Noon there.", "It is noon.", "And in Rome?", '"Oslo"}'):
        assert after_question.count(text) == 1
    if keeps:
        assert after_call.startswith(before.removesuffix(opened) + written)
        assert after_question.startswith(after_call.removesuffix("<think>\n"))


def test_a_turn_that_is_not_remembered_is_as_the_template_has_it(tmp_path: Path) -> None:
    chat: list[Any] = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."},
        {"role": "user", "content": "Bye."},
    ]
    with zoo_gateway(family("qwen3"), tmp_path) as zoo:
        ask(zoo, chat)
        plain = zoo.prompt()
        ask(zoo, chat, **KEPT)
        assert zoo.prompt() == plain


@pytest.mark.parametrize("keeps", [True, False])
def test_a_chat_whose_tools_a_template_moves(keeps: bool, tmp_path: Path) -> None:
    """Keep thoughts although Nemo's template moves the tools, which it shows only before the last
    question.
    """
    options = KEPT if keeps else {}
    with zoo_gateway(family("mistral-nemo"), tmp_path) as zoo:
        chat: list[Any] = [
            {"role": "system", "content": "You know clocks."},
            {"role": "user", "content": "What time is it?"},
        ]
        written = (
            '[TOOL_CALLS][{"name": "get_time", "arguments": {"city":"Oslo"}, "id": "a23456789"}]'
        )
        zoo.says(written)
        call = ask(zoo, chat, **options)
        result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Noon there."}
        chat += [sent_back(call), result]
        zoo.says("It is noon.")
        said = ask(zoo, chat, **options)
        after_call = zoo.prompt()
        chat += [sent_back(said), {"role": "user", "content": "And in Rome?"}]
        ask(zoo, chat, **options)
        after_question = zoo.prompt()
    assert after_question.startswith(f"{after_call}It is noon.</s>") == keeps
    assert after_question.count("[AVAILABLE_TOOLS]") == 1 + keeps
    for text in (
        "You know clocks.",
        "What time is it?",
        "Noon there.",
        "It is noon.",
        "And in Rome?",
        '"Oslo"}',
    ):
        assert after_question.count(text) == 1
