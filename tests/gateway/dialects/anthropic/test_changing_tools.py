"""Tools may be added and removed in a conversation.

Tools that Anthropic defines are described to the model if the client runs them, or left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.anthropic.asking import (
    ALARM,
    CALL,
    CLOCK,
    assistant,
    error_of,
    post,
    shown,
    user,
)
from tests.zoo.families import family
from tests.zoo.gateways import zoo_gateway

ALARM_CALL = CALL.replace("clock", "alarm")


def system(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": [*blocks], **fields}


def added(name: str) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}


def removed(name: str) -> dict[str, Any]:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def defined(tool: Any) -> dict[str, Any]:
    definition = {"type": "tool_definition", "definition": tool}
    return {"type": "tool_addition", "tool": definition}


def ask(claude: anthropic.Anthropic, *turns: Any, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": list(turns)}
    return claude.beta.messages.create(**asked | {"tools": [CLOCK]} | fields)


def calls_of(message: Any) -> list[str]:
    return [block.name for block in message.content if block.type == "tool_use"]


def ignored(message: Any) -> list[tuple[str, str]]:
    return [(one["param"], one["type"]) for one in message.ratoon["ignored"]]


def test_a_change_leaves_the_prompt_before_it_as_it_was(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying("Yes.")
    ask(claude, user("hi"))
    before = prompt_of(engine.requests[-1])
    told = []
    for change in (removed("clock"), added("clock"), defined(ALARM)):
        ask(claude, user("hi"), assistant("Yes."), user("And?"), system(change))
        assert prompt_of(engine.requests[-1])[: len(before)] == before
        told.append(shown(engine).partition("|system:")[2])
    assert told[0].startswith('The tool "clock" is no longer available.|')
    assert told[1].startswith('The tool "clock" is available from here on.|')
    assert told[2].startswith("These tools are available from here on:\n{")
    assert '"name":"alarm"' in told[2]


@pytest.mark.parametrize(
    ("changes", "called"),
    [
        ([], ["clock"]),
        ([removed("clock")], []),
        ([removed("clock"), added("clock")], ["clock"]),
        ([defined(ALARM)], ["clock", "alarm"]),
        ([defined(ALARM), removed("alarm"), removed("clock")], []),
        ([defined(ALARM), removed("alarm"), added("alarm")], ["clock", "alarm"]),
    ],
)
def test_what_is_in_force_may_be_called(
    claude: anthropic.Anthropic, engine: FakeEngine, changes: list[Any], called: list[str]
) -> None:
    engine.script = saying(CALL + ALARM_CALL)
    turns = [system(change) for change in changes]
    assert calls_of(ask(claude, user("hi"), *turns)) == called
    several = system({"type": "text", "text": "Tools change."}, *changes)
    assert calls_of(ask(claude, user("hi"), several)) == called


def test_a_change_outlives_the_text_beside_it(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    text = {"type": "text", "text": "For now."}
    once = system(text, removed("clock"), clear_at="next_user_message")
    engine.script = saying(CALL)
    message = ask(claude, user("hi"), once, assistant("Yes."), user("And?"))
    assert calls_of(message) == []
    assert "For now." not in shown(engine)
    assert "no longer available" in shown(engine)


def test_a_forced_call_is_of_what_is_in_force(
    claude: anthropic.Anthropic, http: httpx.Client, engine: FakeEngine
) -> None:
    turns = [user("hi"), system(removed("clock"), defined(ALARM))]
    ask(claude, *turns, tool_choice={"type": "any"})
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert "alarm" in grammar.text
    assert "clock" not in grammar.text
    gone = {"type": "tool", "name": "clock"}
    answer = post(http, messages=turns, tools=[CLOCK], tool_choice=gone)
    assert error_of(answer, 400, "invalid_request_error")["param"] == "tool_choice"


@pytest.mark.parametrize(
    ("turn", "param", "code"),
    [
        (
            system(added("alarm"), defined(ALARM)),
            "messages[1].content[0].tool.name",
            "tool_reference_unresolved",
        ),
        (
            system(removed("alarm")),
            "messages[1].content[0].tool.name",
            "tool_reference_unresolved",
        ),
        (
            system(defined({"name": "x"})),
            "messages[1].content[0].tool.definition.input_schema",
            "missing_required_parameter",
        ),
        (user([added("clock")]), "messages[1].content[0]", "invalid_value"),
        (
            system(*(defined(ALARM | {"name": f"f{at}"}) for at in range(512))),
            "messages[1].content[511].tool",
            "available_tools_limit_exceeded",
        ),
        (
            system({"type": "tool_removal", "tool": {"type": "tool_definition"}}),
            "messages[1].content[0].tool.type",
            "invalid_value",
        ),
    ],
)
def test_what_cannot_be_is_named(
    http: httpx.Client, engine: FakeEngine, turn: Any, param: str, code: str
) -> None:
    answer = post(http, messages=[user("hi"), turn, user("hi")], tools=[CLOCK])
    error = error_of(answer, 400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, code)
    assert engine.requests == []


def test_hosted_tools_are_passed_over_and_the_message_says_so(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    hosted: list[Any] = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "code_execution_20260521", "name": "code_execution"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ]
    servers: Any = [{"type": "url", "url": "https://x", "name": "x"}]
    reference: Any = {"type": "mcp_toolset_reference", "server_name": "x"}
    turns = [user("hi"), system({"type": "tool_removal", "tool": reference})]
    engine.script = saying(CALL)
    fields: dict[str, Any] = {"tools": [*hosted, CLOCK], "mcp_servers": servers}
    message = ask(claude, *turns, **fields)
    assert calls_of(message) == ["clock"]
    wanted = [
        ("mcp_servers", "mcp"),
        *((f"tools[{at}]", one["type"]) for at, one in enumerate(hosted)),
        ("messages[1].content[0].tool", "mcp"),
    ]
    assert ignored(message) == wanted
    begun, *_ = ask(claude, *turns, stream=True, **fields)
    assert ignored(begun.message) == wanted
    prompt = shown(engine)
    ask(claude, user("hi"))
    assert shown(engine) == prompt
    assert not hasattr(ask(claude, user("hi")), "ratoon")


@pytest.mark.parametrize(
    ("tool", "name", "field"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "bash", "restart"),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            "str_replace_based_edit_tool",
            "old_str",
        ),
        (
            {"type": "text_editor_20250124", "name": "str_replace_editor"},
            "str_replace_editor",
            "old_str",
        ),
        ({"type": "memory_20250818", "name": "memory"}, "memory", "new_path"),
    ],
)
def test_what_the_client_runs_of_anthropics_tools_is_described(
    claude: anthropic.Anthropic, engine: FakeEngine, tool: Any, name: str, field: str
) -> None:
    engine.script = saying(CALL.replace("clock", name))
    assert calls_of(ask(claude, user("hi"), tools=[tool])) == [name]
    assert f'"name": "{name}"' in shown(engine)
    assert f'"{field}"' in shown(engine)


def test_what_a_search_of_the_client_found_is_told(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
    found = {"type": "tool_reference", "tool_name": "clock"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [found]}
    ask(claude, user("hi"), assistant([use]), user([result]))
    assert '|tool:search:The tool "clock" is available from here on.|' in shown(engine)


LATER: dict[str, Any] = {**ALARM, "defer_loading": True}
SEARCHED = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {}}


def found(*names: str, id_: str = "toolu_1") -> dict[str, Any]:
    content = [{"type": "tool_reference", "tool_name": name} for name in names]
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def test_a_deferred_tool_is_described_where_a_search_found_it(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying(ALARM_CALL)
    ask(claude, user("hi"))
    before = shown(engine)
    turns = [user("hi"), assistant([SEARCHED]), user([found("alarm")])]
    again = [assistant([{**SEARCHED, "id": "toolu_2"}]), user([found("alarm", id_="toolu_2")])]
    # Claude Code declares a deferred tool only once it is found, in the order of names
    answer = ask(claude, *turns, *again, tools=[LATER, CLOCK])
    assert shown(engine).startswith(before.removesuffix("<|turn|>assistant:"))
    assert shown(engine).count('"name":"alarm"') == 1
    assert "|tool:clock:These tools are available from here on:\n" in shown(engine)
    assert '|tool:clock:The tool "alarm" is available from here on.|' in shown(engine)
    assert calls_of(answer) == ["alarm"]


def test_a_deferred_tool_that_no_turn_names_is_neither_shown_nor_called(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying(ALARM_CALL)
    answer = ask(claude, user("hi"), tools=[LATER, CLOCK])
    assert '"alarm"' not in shown(engine)
    assert calls_of(answer) == []
    assert calls_of(ask(claude, user("hi"), tools=[ALARM, CLOCK])) == ["alarm"]


def test_a_deferred_tool_is_described_where_a_system_message_adds_it(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying(ALARM_CALL)
    turns = [user("hi"), system(added("alarm")), system(removed("alarm"))]
    assert calls_of(ask(claude, *turns[:2], tools=[LATER, CLOCK])) == ["alarm"]
    assert '"name":"alarm"' in shown(engine)
    assert calls_of(ask(claude, *turns, tools=[LATER, CLOCK])) == []


@pytest.mark.parametrize(
    "others", [[], [CLOCK, {"type": "tool_search_tool_bm25_20251119", "name": "search"}]]
)
def test_deferred_tools_are_shown_at_once_where_no_search_of_the_client_finds_them(
    claude: anthropic.Anthropic, engine: FakeEngine, others: list[Any]
) -> None:
    engine.script = saying(ALARM_CALL)
    assert calls_of(ask(claude, user("hi"), tools=[LATER, *others])) == ["alarm"]
    assert '"name": "alarm"' in shown(engine)


def test_a_call_of_an_added_tool_comes_back_token_for_token(tmp_path: Path) -> None:
    wrote = '<tool_call>\n{"name": "alarm",  "arguments": {"at": "\\u00e9"}}\n</tool_call>'
    with zoo_gateway(family("qwen3"), tmp_path) as zoo:
        zoo.says(wrote)
        turns = [user("hi"), system(defined(ALARM))]
        model = zoo.client.models.list().data[0].id
        first = ask(zoo.anthropic, *turns, model=model)
        [use] = first.content
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "done"}
        said = assistant([{**use.to_dict()}])
        ask(zoo.anthropic, *turns, said, user([result]), model=model)
        assert wrote in zoo.prompt()
