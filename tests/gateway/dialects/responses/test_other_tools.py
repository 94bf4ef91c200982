"""Tools of `/v1/responses` that are not functions: shown to the model under a name, or ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.zoo.families import family
from tests.zoo.gateways import zoo_gateway

CODEX = json.loads((Path(__file__).parent / "transcripts" / "codex-0.171.0.json").read_text())
PATCH = '*** Begin Patch\n*** Add File: a.txt\n+"hi" \\ é\n*** End Patch\n'
PATCHER = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
}


@pytest.fixture(scope="module")
def module_engine() -> FakeEngine:
    """Make an engine for Codex's prompts of 20,000 bytes, each of which is a token in this test."""
    return FakeEngine(msgspec.structs.replace(WELCOME, max_model_len=100_000))


@pytest.fixture
def engine(module_engine: FakeEngine) -> FakeEngine:
    module_engine.reset()
    return module_engine


def function(name: str, **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"target": {"type": "string"}}}
    return {"type": "function", "name": name, "parameters": schema, **fields}


def space(name: str, *tools: Any, description: str = "Agents.") -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": description, "tools": list(tools)}


def called(name: str, **arguments: Any) -> str:
    spelled = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{spelled}</tool_call>"


def ask(client: openai.OpenAI, *tools: Any, **fields: Any) -> Any:
    asked = {"model": MODEL, "input": "hi", "tools": list(tools), **fields}
    return client.responses.create(**asked)


def streamed(client: openai.OpenAI, *tools: Any, **fields: Any) -> tuple[Any, list[Any]]:
    """Return the response at the end of a stream, and all events of the stream."""
    events = list(ask(client, *tools, stream=True, **fields))
    return events[-1].response, events


def replayed(client: openai.OpenAI, name: str, **fields: Any) -> Any:
    """Send a recorded request of Codex again; return the answer."""
    sent = {key: one for key, one in CODEX[name].items() if key != "stream"}
    return client.responses.create(**{**sent, "model": MODEL, **fields})


def prompt(engine: FakeEngine) -> str:
    ids = [one for one in prompt_of(engine.requests[-1]) if one < 256]
    return bytes(ids).decode()


def ignored(response: Any) -> list[tuple[str, str]]:
    return [(one["param"], one["type"]) for one in response.ratoon["ignored"]]


@pytest.mark.parametrize("name", CODEX)
def test_every_request_of_codex_is_answered(
    client: openai.OpenAI, engine: FakeEngine, name: str
) -> None:
    engine.script = saying("Done.")
    answer = replayed(client, name)
    assert (answer.status, answer.output_text) == ("completed", "Done.")
    passed_over = [
        one["type"] for one in CODEX[name].get("tools", ()) if one["type"] == "web_search"
    ]
    grammars = [one for one in CODEX[name].get("tools", ()) if one["type"] == "custom"]
    if passed_over or grammars:
        told = [kind for _, kind in ignored(answer)]
        assert [kind for kind in told if kind != "grammar"] == passed_over
    streaming = replayed(client, name, stream=True)
    assert [event.type for event in streaming][-1] == "response.completed"


def test_what_codex_offers_is_called_as_it_is_known_there(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying(called("close_agent", target="a") + called("get_goal"))
    agent, goal = replayed(client, "command").output
    assert (agent.type, agent.name, agent.namespace) == (
        "function_call",
        "close_agent",
        "multi_agent_v1",
    )
    assert json.loads(agent.arguments) == {"target": "a"}
    assert (goal.name, goal.namespace) == ("get_goal", None)
    engine.script = saying(called("exec", input="text('hi')"))
    [code] = replayed(client, "additional_tools").output
    assert (code.type, code.namespace, code.input) == (
        "custom_tool_call",
        "functions",
        "text('hi')",
    )


@pytest.mark.parametrize("per_step", [1, 7, 1000])
def test_a_tool_that_takes_text_is_called_with_text(
    client: openai.OpenAI, engine: FakeEngine, per_step: int
) -> None:
    engine.script, engine.per_step = saying("So.\n" + called("apply_patch", input=PATCH)), per_step
    response, events = streamed(client, PATCHER)
    _, call = response.output
    assert (call.type, call.name, call.input, call.status) == (
        "custom_tool_call",
        "apply_patch",
        PATCH,
        "completed",
    )
    of_input = [event for event in events if "custom_tool_call_input" in event.type]
    assert "".join(event.delta for event in of_input[:-1]) == PATCH
    assert of_input[-1].input == PATCH
    assert [event.sequence_number for event in events] == list(range(len(events)))
    whole = ask(client, PATCHER).output[1]
    assert (whole.input, whole.name) == (PATCH, "apply_patch")
    assert "Edits files.\\n\\nThe input follows this Lark grammar:\\nstart: " in prompt(engine)


def test_a_call_with_text_is_shown_again_as_it_was(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    spelled = called("apply_patch", input=PATCH)
    engine.script = saying(spelled)
    first = ask(client, PATCHER)
    result = {"type": "custom_tool_call_output", "output": "ok", "call_id": first.output[0].call_id}
    ask(client, PATCHER, input=[result], previous_response_id=first.id)
    assert spelled in prompt(engine)
    sent = [{"role": "user", "content": "hi"}, first.output[0].to_dict(), result]
    before = prompt(engine)
    ask(client, PATCHER, input=sent)
    assert prompt(engine) == before


def test_members_of_namespaces_have_their_own_names_where_they_can(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    tools = [
        space("a", function("stop"), function("go")),
        space("b", function("go")),
        function("stop"),
    ]
    engine.script = saying(called("a__stop") + called("go") + called("b__go") + called("stop"))
    found = [(call.name, call.namespace) for call in ask(client, *tools).output]
    assert found == [("stop", "a"), ("go", "a"), ("go", "b"), ("stop", None)]
    shown = prompt(engine)
    assert shown.count('"Agents.') == 0
    assert shown.count("a: Agents.") == shown.count("b: Agents.") == 1
    call = {"type": "function_call", "call_id": "c1", "name": "go", "namespace": "b"}
    items = [{"role": "user", "content": "hi"}, {**call, "arguments": "{}"}]
    items += [{"type": "function_call_output", "call_id": "c1", "output": "gone"}]
    ask(client, *tools, input=items)
    assert '{"name": "b__go", "arguments": {}}' in prompt(engine)


def test_calls_of_a_deferred_function_name_it_as_their_namespace(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    later = {**function("go"), "defer_loading": True}
    tools = [later, function("stop"), space("a", {**function("wait"), "defer_loading": True})]
    engine.script = saying(called("go") + called("stop") + called("wait"))
    found = [(call.name, call.namespace) for call in ask(client, *tools).output]
    assert found == [("go", "go"), ("stop", None), ("wait", "a")]
    call = {"type": "function_call", "call_id": "c1", "name": "go", "namespace": "go"}
    ask(client, *tools, input=[{"role": "user", "content": "hi"}, {**call, "arguments": "{}"}])
    assert '{"name": "go", "arguments": {}}' in prompt(engine)


def test_hosted_tools_are_passed_over_and_the_answer_says_so(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    hosted: list[dict[str, Any]] = [
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation", "size": "auto"},
        {
            "type": "mcp",
            "server_label": "x",
            "server_url": "https://x",
            "require_approval": "never",
        },
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "tool_search"},
        {"type": "something_new", "name": 5, "tools": "none"},
    ]
    engine.script = saying("Yes.")
    response, events = streamed(client, function("clock"), *hosted)
    wanted = [(f"tools[{at}]", one["type"]) for at, one in enumerate(hosted, 1)]
    assert ignored(response) == ignored(events[0].response) == wanted
    assert [tool.type for tool in response.tools] == ["function", *(one["type"] for one in hosted)]
    shown = prompt(engine)
    ask(client, function("clock"))
    assert prompt(engine) == shown
    assert not hasattr(ask(client, function("clock")), "ratoon")


def test_a_search_for_tools_is_the_clients(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(called("tool_search", query="agents"))
    response, events = streamed(client, *CODEX["search"]["tools"])
    [search] = response.output
    assert (search.type, search.execution, search.arguments) == (
        "tool_search_call",
        "client",
        {"query": "agents"},
    )
    assert not any("arguments" in event.type for event in events)
    replayed(client, "search")
    shown = prompt(engine)
    assert shown.index("These tools are available from here on:") < shown.index("spawn_agent")
    engine.script = saying(called("spawn_agent"))
    [spawned] = replayed(client, "search").output
    assert (spawned.name, spawned.namespace) == ("spawn_agent", "multi_agent_v1")


def test_tools_that_come_later_leave_the_prompt_before_them_as_it_was(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("Yes.")
    said: list[Any] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Yes."}]
    ask(client, function("clock"), input=said[:1])
    before = prompt(engine)
    more = {"type": "additional_tools", "role": "developer", "tools": [function("alarm")]}
    asked = {"input": [*said, more, {"role": "user", "content": "Wake me."}]}
    engine.script = saying(called("alarm"))
    assert ask(client, function("clock"), **asked).output[0].name == "alarm"
    assert prompt(engine).startswith(before)
    assert '"alarm"' in prompt(engine)[len(before) :]
    engine.script = saying(called("alarm"))
    assert ask(client, function("clock"), input=said[:1]).output[0].type == "message"


@pytest.mark.parametrize(
    ("choice", "param", "code"),
    [
        ({"type": "web_search"}, "tool_choice.type", "unsupported_parameter"),
        ({"type": "mcp", "server_label": "x"}, "tool_choice.type", "unsupported_parameter"),
        ({"type": "custom", "name": "other"}, "tool_choice", "invalid_value"),
        ({"type": "function", "name": "apply_patch"}, "tool_choice", "invalid_value"),
        ({"type": "custom"}, "tool_choice.name", "missing_required_parameter"),
        ({"type": "shell"}, "tool_choice.type", "unsupported_parameter"),
        ({"type": "apply_patch"}, "tool_choice", "invalid_value"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
            "tool_choice",
            "invalid_value",
        ),
    ],
)
def test_what_cannot_run_cannot_be_chosen(
    client: openai.OpenAI, engine: FakeEngine, choice: Any, param: str, code: str
) -> None:
    container = {"type": "shell", "environment": {"type": "container_auto"}}
    tools = [PATCHER, space("a", function("go")), {"type": "web_search"}, container]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, *tools, tool_choice=choice)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert engine.requests == []
    with pytest.raises(openai.BadRequestError):
        ask(client, {"type": "web_search"}, tool_choice="required")


def test_what_can_be_called_can_be_chosen(client: openai.OpenAI, engine: FakeEngine) -> None:
    tools = [PATCHER, space("a", function("go")), {"type": "web_search"}]
    for choice, name in (
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "go", "namespace": "a"}, "go"),
        ({"type": "function", "name": "go"}, "go"),
    ):
        ask(client, *tools, tool_choice=choice)
        grammar = engine.requests[-1].sampling.grammar
        assert grammar is not None
        assert name in grammar.text
        assert not {"apply_patch", "go"} - {name} & {grammar.text}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    engine.script = saying(called("go"))
    [message] = ask(client, *tools, tool_choice=allowed).output
    assert message.type == "message"


def test_a_mark_on_a_tool_covers_those_before_it(client: openai.OpenAI, engine: FakeEngine) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    tools = [{"type": "web_search"}, space("a", function("go"), function("stop")) | mark]
    ask(client, *tools, function("clock"), tool_choice="none")
    [placed] = engine.requests[-1].marks
    covered = bytes(min(one, 255) for one in prompt_of(engine.requests[-1])[: placed.num_tokens])
    assert b'"stop"' in covered
    assert b'"clock"' not in covered


def test_names_that_meet_are_refused(client: openai.OpenAI, engine: FakeEngine) -> None:
    for tools in (
        [function("go"), PATCHER | {"name": "go"}],
        [function("go"), function("go", description="another")],
        [function("a__go"), function("go"), space("a", function("go"))],
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, *tools)
        assert (refused.value.param or "").endswith(".name")
    assert ask(client, function("go"), function("go")).status == "completed", "the same twice"


def test_what_the_model_wrote_comes_back_token_for_token(tmp_path: Path) -> None:
    """Put a turn back into the prompt token for token, also after a tool was added.

    The template is the model's own.
    """
    more = {"type": "additional_tools", "role": "developer", "tools": [function("alarm")]}
    with zoo_gateway(family("qwen3"), tmp_path) as zoo:
        model = zoo.client.models.list().data[0].id
        for name, kind in (("apply_patch", "custom_tool_call"), ("alarm", "function_call")):
            call = f'{{"name": "{name}",  "arguments": {{"input": "\\u00e9"}}}}'
            wrote = f"<tool_call>\n{call}\n</tool_call>"
            zoo.says(wrote)
            said: list[Any] = [{"role": "user", "content": "hi"}, more]
            [made] = ask(zoo.client, PATCHER, model=model, input=said).output
            assert made.type == kind
            result = {"type": f"{kind}_output", "call_id": made.call_id, "output": "done"}
            ask(zoo.client, PATCHER, model=model, input=[*said, made.to_dict(), result])
            assert wrote in zoo.prompt()


def grammar_tool(syntax: str, definition: str) -> dict[str, Any]:
    format_ = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": f"{syntax}_tool", "format": format_}


def test_grammars_hold_calls_and_the_answer_says_which_do_not(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    regex, lark = grammar_tool("regex", "a+|b"), grammar_tool("lark", "start: A\nA: /c+/")
    nested = grammar_tool("lark", 'start: "(" start? ")"')
    unread = grammar_tool("lark", "start: <|end|>")
    tools = regex, lark, {**nested, "name": "nested"}
    answer = ask(client, *tools, {**unread, "name": "unread"}, space("files", unread))
    assert ignored(answer) == [
        ("tools[3].format", "grammar"),
        ("tools[4].tools[0].format", "grammar"),
    ]
    assert answer.ratoon["ignored"][0]["reason"].endswith(
        "calls are not held to it: `<|end|>` at character 7 is not read"
    )
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert "^(?:a+|b)$" in grammar.text
    assert "^(?:c)+$" in grammar.text
    assert json.dumps(["lark_string", nested["format"]["definition"]]) in grammar.text
    assert "lark_string" not in prompt(engine), "the model is shown the grammar once"
    ask(client, unread)
    assert engine.requests[-1].sampling.grammar is None


def test_calls_are_held_to_the_grammars_of_codex(client: openai.OpenAI, engine: FakeEngine) -> None:
    for name, sent in CODEX.items():
        if any(one["type"] == "custom" for one in sent.get("tools", ())):
            answer = replayed(client, name)
            assert "grammar" not in [one["type"] for one in answer.ratoon["ignored"]]
            assert engine.requests[-1].sampling.grammar is not None
