"""Custom tools in chats are called with text. Hosted tools cannot be called."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.openai.calling.hermes import HI, OSLO, WEATHER, written
from tests.gateway.dialects.openai.calling.test_calls import asked, calls_of

SQL = "SELECT 'a' -- \\ é\nFROM b;"
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "SELECT .*"}}
QUERY: Any = {
    "type": "custom",
    "custom": {"name": "query", "description": "Asks the database.", "format": GRAMMAR},
}
SEARCH: Any = {"type": "web_search", "search_context_size": "low"}
TOOLS = [QUERY, SEARCH, WEATHER]
CALLED = written(("query", {"input": SQL}), OSLO)


def shown(engine: FakeEngine) -> str:
    return bytes(one for one in prompt_of(engine.requests[-1]) if one < 256).decode()


def test_whole(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(CALLED)
    answer: Any = asked(client, tools=TOOLS)
    query, weather = answer.choices[0].message.tool_calls
    assert (query.type, query.custom.name, query.custom.input) == ("custom", "query", SQL)
    assert weather.function.name == "weather"
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [(one["param"], one["type"]) for one in answer.ratoon["ignored"]] == [
        ("tools[1]", "web_search")
    ]
    prompt = shown(engine)
    assert "Asks the database.\\n\\nThe input follows this regular expression:" in prompt
    assert "web_search" not in prompt


@pytest.mark.parametrize("per_step", [1, 7, 1000])
def test_streamed(client: openai.OpenAI, engine: FakeEngine, per_step: int) -> None:
    engine.script, engine.per_step = saying(CALLED), per_step
    stream: Any = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, stream=True)
    chunks = list(stream)
    assert chunks[0].ratoon["ignored"][0]["param"] == "tools[1]"
    deltas = [call for one in chunks for call in one.choices[0].delta.tool_calls or ()]
    begun = [(one.index, one.type) for one in deltas if one.id]
    assert begun == [(0, "custom"), (1, "function")]
    texts = [one.custom["input"] for one in deltas if one.index == 0]
    assert "".join(texts) == SQL
    assert (len(texts) > 20) == (per_step == 1)
    arguments = [one.function.arguments for one in deltas if one.index == 1]
    assert '"Oslo"' in "".join(arguments)


def test_arguments_of_another_form_are_the_text(client: openai.OpenAI, engine: FakeEngine) -> None:
    for arguments, text in (({"sql": SQL}, SQL), ({"a": 1, "b": "c"}, '{"a": 1, "b": "c"}')):
        engine.script = saying(written(("query", arguments)))
        answer: Any = asked(client, tools=TOOLS)
        assert answer.choices[0].message.tool_calls[0].custom.input == text
        stream: Any = client.chat.completions.create(
            model=MODEL, messages=HI, tools=TOOLS, stream=True
        )
        deltas = [call for one in stream for call in one.choices[0].delta.tool_calls or ()]
        assert "".join(one.custom["input"] for one in deltas) == text


def test_a_call_with_text_is_sent_back(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(CALLED)
    answer: Any = asked(client, tools=TOOLS)
    message = answer.choices[0].message.to_dict()
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        for call in message["tool_calls"]
    ]
    asked(client, tools=TOOLS, messages=[*HI, message, *results])
    assert '{"name": "query", "arguments": {"input": "SELECT' in shown(engine)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"type": "custom", "id": "1"}, "messages[0].tool_calls[0].custom"),
        ({"id": "1"}, "messages[0].tool_calls[0].function"),
        ({"type": "custom", "custom": {"name": "q"}}, "messages[0].tool_calls[0].custom.input"),
    ]
    for call, param in bad:
        with pytest.raises(openai.BadRequestError) as refused:
            asked(client, messages=[{"role": "assistant", "tool_calls": [call]}])
        assert refused.value.param == param


def test_one_can_be_forced_and_a_hosted_one_cannot(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    query = {"type": "custom", "custom": {"name": "query"}}
    several = {"mode": "required", "tools": [query]}
    for choice in (query, {"type": "allowed_tools", "allowed_tools": several}):
        asked(client, tools=TOOLS, tool_choice=choice)
        grammar = engine.requests[-1].sampling.grammar
        assert grammar is not None
        assert "query" in grammar.text
        assert "weather" not in grammar.text
    count = len(engine.requests)
    hosted: list[dict[str, Any]] = [
        {"type": "web_search"},
        {"type": "custom", "custom": {"name": "web_search"}},
    ]
    for choice in hosted:
        with pytest.raises(openai.BadRequestError) as refused:
            asked(client, tools=TOOLS, tool_choice=choice)
        assert (refused.value.param or "").startswith("tool_choice")
    assert len(engine.requests) == count


def test_functions_alone_are_answered_as_ever(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(written(OSLO))
    answer = asked(client)
    assert calls_of(answer) == [OSLO]
    assert not hasattr(answer, "ratoon")


def lark_tool(definition: str) -> Any:
    grammar = {"syntax": "lark", "definition": definition}
    custom = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
    return {"type": "custom", "custom": custom}


def test_a_grammar_holds_calls_and_the_answer_says_which_does_not(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    answer: Any = asked(client, tools=[QUERY, lark_tool("start: <|end|>")])
    assert [(one["param"], one["type"]) for one in answer.ratoon["ignored"]] == [
        ("tools[1].custom.format", "grammar")
    ]
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert "^(?:SELECT .*)$" in grammar.text
    asked(client, tools=[lark_tool("start: <|end|>")])
    assert engine.requests[-1].sampling.grammar is None


def test_a_grammar_may_be_recursive(client: openai.OpenAI, engine: FakeEngine) -> None:
    nested = 'start: "(" start? ")"'
    answer = asked(client, tools=[QUERY, lark_tool(nested)])
    assert not hasattr(answer, "ratoon")
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert json.dumps(["lark_string", nested]) in grammar.text
