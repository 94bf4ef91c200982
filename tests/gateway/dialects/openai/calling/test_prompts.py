"""Tools, earlier calls and their results, as they appear in the prompt."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from gateway.http.bodies.body import MAX_INNER_DEPTH
from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.openai.calling.hermes import HI, TOOLS, allowed, named


def shown(client: openai.OpenAI, engine: FakeEngine, **fields: Any) -> list[int]:
    request = {"model": MODEL, "messages": HI, "max_tokens": 1, **fields}
    client.chat.completions.create(**request)
    return prompt_of(engine.requests[-1])


def test_a_choice_changes_no_prompt(client: openai.OpenAI, engine: FakeEngine) -> None:
    choices = ["auto", "none", "required", named("clock"), allowed("required", "weather")]
    plain = shown(client, engine, tools=TOOLS)
    for choice in choices:
        assert shown(client, engine, tools=TOOLS, tool_choice=choice) == plain
    assert shown(client, engine, tools=TOOLS, parallel_tool_calls=False) == plain
    assert shown(client, engine, tools=TOOLS[:1]) != plain
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    assert shown(client, engine, tools=TOOLS, response_format=schema) == plain


def turn(content: Any = None, arguments: Any = '{"city": "Oslo"}', **more: Any) -> Any:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call], **more}


def history(said: dict[str, Any], result: Any = "rain") -> list[Any]:
    return [*HI, said, {"role": "tool", "tool_call_id": "1", "content": result}]


def without(said: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return the message `said` without the field at `path`."""
    if len(path) == 1:
        return {name: value for name, value in said.items() if name != path[0]}
    inner = said[path[0]]
    if isinstance(inner, list):
        return said | {path[0]: [without(one, *path[1:]) for one in inner]}
    return said | {path[0]: without(inner, *path[1:])}


ALIKE: dict[str, list[Any]] = {
    "content is null": history(turn(None)),
    "content is empty": history(turn("")),
    "no content": history(without(turn(), "content")),
    "no parts": history(turn([])),
    "an object": history(turn(arguments={"city": "Oslo"})),
    "other spacing": history(turn(arguments='{ "city":"Oslo" }\n')),
    "no type of the call": history(without(turn(), "tool_calls", "type")),
    "no id": history(without(turn(), "tool_calls", "id")),
    "a place among the calls": history(
        turn() | {"tool_calls": [turn()["tool_calls"][0] | {"index": 0}]}
    ),
    "a result in parts": history(turn(), [{"type": "text", "text": "rain"}]),
    "a named result": [*history(turn())[:-1], history(turn())[-1] | {"name": "weather"}],
    "what answers have": history(turn(refusal=None, annotations=[], audio=None)),
}


@pytest.mark.parametrize("case", ALIKE)
def test_a_call_and_its_result_are_shown_alike_however_they_are_sent(
    client: openai.OpenAI, engine: FakeEngine, case: str
) -> None:
    expected = shown(client, engine, messages=history(turn()), tools=TOOLS)
    assert shown(client, engine, messages=ALIKE[case], tools=TOOLS) == expected
    text = bytes(expected).decode()
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in text
    assert "<tool_response>\nrain\n</tool_response>" in text
    assert shown(client, engine, messages=history(turn(), "sun"), tools=TOOLS) != expected


@pytest.mark.parametrize("arguments", ["", " ", "{}", "null", {}, None])
def test_no_arguments_are_an_empty_object(
    client: openai.OpenAI, engine: FakeEngine, arguments: Any
) -> None:
    prompt = bytes(shown(client, engine, messages=history(turn(arguments=arguments)), tools=TOOLS))
    assert b'{"name": "weather", "arguments": {}}' in prompt


WITHOUT_CONTENT: dict[str, tuple[dict[str, Any], str]] = {
    "null": ({"content": None}, ""),
    "absent": ({}, ""),
    "a thought alone": ({"content": None, "reasoning_content": "Hm."}, ""),
    "a refusal": ({"content": None, "refusal": "No."}, "No."),
    "a refusal beside an empty text": ({"content": "", "refusal": "No."}, "No."),
    "a refusal's part": ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
}


@pytest.mark.parametrize("case", WITHOUT_CONTENT)
def test_an_assistants_turn_needs_no_content(
    client: openai.OpenAI, engine: FakeEngine, case: str
) -> None:
    fields, text = WITHOUT_CONTENT[case]
    turns: list[Any] = [{"role": "assistant", **fields}, {"role": "assistant", "content": text}]
    sent, plain = (shown(client, engine, messages=[*HI, one, *HI]) for one in turns)
    assert sent == plain
    with pytest.raises(openai.BadRequestError) as refused:
        shown(client, engine, messages=[*HI, {"role": "user", "content": None}])
    assert refused.value.param == "messages[1].content", "the control"


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_only_the_assistant_refuses(client: openai.OpenAI, engine: FakeEngine, role: str) -> None:
    text, refusal = {"type": "text", "text": "a"}, {"type": "refusal", "refusal": "No."}
    turn: dict[str, Any] = (
        {"role": role, "tool_call_id": "call_1"} if role == "tool" else {"role": role}
    )
    with pytest.raises(openai.BadRequestError) as refused:
        shown(client, engine, messages=[*HI, {**turn, "content": [text, refusal]}])
    assert refused.value.param == "messages[1].content[1].type"
    shown(client, engine, messages=[*HI, {"role": "assistant", "content": [text, refusal]}])


DEEP = '{"a":' * (MAX_INNER_DEPTH + 1) + "1" + "}" * (MAX_INNER_DEPTH + 1)
BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ('{"city": ', "messages[1].tool_calls[0].function.arguments"),
    "a list": ("[1]", "messages[1].tool_calls[0].function.arguments"),
    "a number": ("1", "messages[1].tool_calls[0].function.arguments"),
    "deep": (DEEP, "messages"),
    "very deep": ('{"a":' * 5000 + "1" + "}" * 5000, "messages"),
    "many values": (json.dumps({"a": [0] * 200_000}), "messages"),
}


@pytest.mark.parametrize("case", BAD)
def test_arguments_that_are_none_are_refused(
    client: openai.OpenAI, engine: FakeEngine, case: str
) -> None:
    arguments, param = BAD[case]
    with pytest.raises(openai.BadRequestError) as refused:
        shown(client, engine, messages=history(turn(arguments=arguments)), tools=TOOLS)
    assert refused.value.param == param


def test_an_answer_that_is_sent_back_is_shown_as_it_was_written(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    engine.script = lambda _: list(written.encode())
    answer = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)
    message = answer.choices[0].message
    first = prompt_of(engine.requests[-1])
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    back = shown(client, engine, messages=[*HI, message, result], tools=TOOLS)
    assert bytes(back).startswith(bytes(first) + written.encode())
