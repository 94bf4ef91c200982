"""Functions are declared, called and answered with the official client. Google's own tools are
ignored.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from google import genai
from google.genai import types

from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.gateway.dialects.gemini.asking import (
    CALL,
    CLOCK,
    ask,
    error_of,
    param_of,
    parts_of,
    post,
    reason_of,
    shown,
    streamed,
)

TOOLS: Any = [{"function_declarations": [CLOCK]}]
SHOWN = (
    '|tools:[{"type": "function", "function": {"name": "clock", "description": "tells the time",'
    ' "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}}]'
    ' in <tool_call>{"name": 0, "arguments": 0}</tool_call>'
)


def turn(role: str, **part: Any) -> types.Content:
    """Make a content of one part."""
    return types.Content(role=role, parts=[types.Part(**part)])


def test_a_call(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying(f"Let me see.\n{CALL}")
    answer = ask(gemini, tools=TOOLS)
    text, called = parts_of(answer)
    assert text.text == "Let me see."
    assert called.function_call is not None
    assert (called.function_call.name, called.function_call.args) == ("clock", {"zone": "UTC"})
    assert called.function_call.id
    assert reason_of(answer) == "STOP"
    assert shown(engine) == f"{SHOWN}|user:hi|assistant:"


def test_one_value_may_stand_in_place_of_a_list(http: httpx.Client, engine: FakeEngine) -> None:
    """Effect's client sends a single tool without a list."""
    engine.script = saying(CALL)
    answer = post(
        http,
        tools={"functionDeclarations": CLOCK},
        toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": "clock"}},
        generationConfig={"stopSequences": "noon", "responseModalities": "TEXT"},
    )
    [part] = answer.json()["candidates"][0]["content"]["parts"]
    assert part["functionCall"]["args"] == {"zone": "UTC"}
    assert shown(engine) == f"{SHOWN}|user:hi|assistant:"


def test_calls_are_streamed_whole(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying(f"{CALL}\n{CALL.replace('UTC', 'CET')}")
    *chunks, last = streamed(gemini, tools=TOOLS)
    calls = [part.function_call for chunk in chunks for part in parts_of(chunk)]
    assert [call.args for call in calls if call is not None] == [{"zone": "UTC"}, {"zone": "CET"}]
    assert len({call.id for call in calls if call is not None}) == 2
    assert reason_of(last) == "STOP"


def test_results_find_their_calls(gemini: genai.Client, engine: FakeEngine) -> None:
    def call(zone: str) -> types.Part:
        return types.Part.from_function_call(name="clock", args={"zone": zone})

    def result(**response: Any) -> types.Part:
        return types.Part.from_function_response(name="clock", response=response)

    turns = [
        turn("user", text="hi"),
        types.Content(role="model", parts=[call("UTC"), call("CET")]),
        types.Content(role="user", parts=[result(output="noon"), result(error="no such zone")]),
    ]
    ask(gemini, turns, tools=TOOLS)
    called = "".join(
        f'<tool_call>{{"name": "clock", "arguments": {{"zone": "{zone}"}}}}</tool_call>'
        for zone in ("UTC", "CET")
    )
    results = "|tool:clock:noon|tool:clock:Error: no such zone"
    assert shown(engine) == f"{SHOWN}|user:hi|assistant:{called}{results}|assistant:"


def test_the_client_calls_a_function_of_python(gemini: genai.Client, engine: FakeEngine) -> None:
    asked = []

    def clock(zone: str) -> str:
        """tells the time"""
        asked.append(zone)
        engine.script = saying("It is noon.")
        return "noon"

    engine.script = saying(CALL)
    assert ask(gemini, tools=[clock]).text == "It is noon."
    assert asked == ["UTC"]
    assert '|tool:clock:{"result":"noon"}|assistant:' in shown(engine)


@pytest.mark.parametrize(
    ("mode", "names", "has_grammar"),
    [
        ("AUTO", None, False),
        ("ANY", None, True),
        ("ANY", ["clock"], True),
        ("VALIDATED", None, True),
        ("NONE", None, False),
    ],
)
def test_the_mode_of_calls(
    gemini: genai.Client, engine: FakeEngine, mode: str, names: list[str] | None, has_grammar: bool
) -> None:
    calling = {"mode": mode, "allowed_function_names": names}
    engine.script = saying(CALL)
    answer = ask(gemini, tools=TOOLS, tool_config={"function_calling_config": calling})
    assert (engine.requests[-1].sampling.grammar is not None) == has_grammar
    [part] = parts_of(answer)
    assert (part.function_call is None) == (mode == "NONE")


@pytest.mark.parametrize(
    ("calling", "field"),
    [
        ({"mode": "SOME"}, "mode"),
        ({"mode": "ANY", "allowedFunctionNames": ["alarm"]}, "allowedFunctionNames"),
    ],
)
def test_a_mode_that_cannot_be(http: httpx.Client, calling: dict[str, Any], field: str) -> None:
    tools = [{"functionDeclarations": [CLOCK]}]
    answer = post(http, tools=tools, toolConfig={"functionCallingConfig": calling})
    error = error_of(answer, 400, "INVALID_ARGUMENT")
    assert param_of(error) == f"toolConfig.functionCallingConfig.{field}"


def test_hosted_tools_are_passed_over(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    answer = post(http, tools=[{"googleSearch": {}}, {"functionDeclarations": [CLOCK]}])
    [ignored] = answer.json()["ratoon"]["ignored"]
    assert (ignored["param"], ignored["type"]) == ("tools[0].googleSearch", "google_search")
    assert "google" not in shown(engine)


def test_two_functions_of_one_name(http: httpx.Client) -> None:
    answer = post(http, tools=[{"functionDeclarations": [CLOCK, CLOCK]}])
    error = error_of(answer, 400, "INVALID_ARGUMENT")
    assert param_of(error) == "tools[0].functionDeclarations[1].name"


def test_both_spellings_of_a_request_are_one(http: httpx.Client, engine: FakeEngine) -> None:
    camel: dict[str, Any] = {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"a_b": 1}}]}],
        "generationConfig": {"maxOutputTokens": 3},
    }
    snake: dict[str, Any] = {
        "contents": {"parts": {"text": "hi"}},
        "system_instruction": {"parts": {"text": "Be brief."}},
        "tools": [{"function_declarations": [{"name": "f", "parameters_json_schema": {"a_b": 1}}]}],
        "generation_config": {"max_output_tokens": 3},
    }
    assert post(http, **camel).status_code == post(http, **snake).status_code == 200
    one, other = engine.requests[-2:]
    assert one.token_ids == other.token_ids
    assert one.sampling.max_tokens == other.sampling.max_tokens == 3
    assert '"a_b": 1' in shown(engine), "a schema's names are the caller's own"
