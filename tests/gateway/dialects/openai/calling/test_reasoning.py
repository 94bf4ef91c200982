"""Reasoning is counted, and separate from the answer's text; requests can switch it on and off."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import HI, OSLO, TOOLS, named, written
from tests.gateway.dialects.openai.calling.test_calls import asked, calls_of, either

THOUGHT = "I think\nso."


def reasoning_of(message: Any) -> str | None:
    """Return a message's reasoning; check that both of its names have the same text."""
    found: str | None = getattr(message, "reasoning_content", None)
    assert getattr(message, "reasoning", None) == found
    return found


def test_whole(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(f"<think>\n{THOUGHT}\n</think>\n\nYes.")
    answer = asked(client, tools=openai.omit)
    message = answer.choices[0].message
    assert (reasoning_of(message), message.content) == (THOUGHT, "Yes.")
    assert answer.usage
    details = answer.usage.completion_tokens_details
    assert details
    assert len(THOUGHT) <= (details.reasoning_tokens or 0) < answer.usage.completion_tokens - 4


def test_streamed(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(f"<think>\n{THOUGHT}\n</think>\n\nYes.")
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(reasoning_of(delta) or "" for delta in deltas) == THOUGHT
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    usage = chunks[-1].usage
    assert usage
    assert usage.completion_tokens_details
    assert (usage.completion_tokens_details.reasoning_tokens or 0) >= len(THOUGHT)


def test_without_reasoning_none_is_shown_and_counted(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("Yes.")
    answer = asked(client)
    assert reasoning_of(answer.choices[0].message) is None
    assert answer.usage
    assert answer.usage.completion_tokens_details
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


@either
def test_reasoning_before_a_call(client: openai.OpenAI, engine: FakeEngine, ask: Any) -> None:
    engine.script = saying(f"<think>\n{THOUGHT}\n</think>\n\n{written(OSLO)}")
    answer = ask(client)
    assert calls_of(answer) == [OSLO]
    assert answer.choices[0].finish_reason == "tool_calls"
    if ask is asked:  # the client's stream helper does not assemble reasoning
        assert reasoning_of(answer.choices[0].message) == THOUGHT


@either
def test_a_call_that_was_only_thought_of_is_none(
    client: openai.OpenAI, engine: FakeEngine, ask: Any
) -> None:
    engine.script = saying(f"<think>\n{written(OSLO)}\n</think>\n\nNo.")
    answer = ask(client)
    assert calls_of(answer) == []
    assert answer.choices[0].message.content == "No."


def test_the_grammar_lets_the_model_think_first(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("")
    asked(client, tool_choice=named("clock"))
    asked(client, tool_choice="none", extra_body={"guided_grammar": 'root ::= "a"'})
    for request in engine.requests:
        assert request.sampling.grammar is not None
        assert "</think>" in request.sampling.grammar.text


def test_the_grammar_has_no_thought_where_thinking_is_off(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    """Send what autoevals 0.3.0 asks a judge, with thinking turned off."""
    choice = {"type": "string", "enum": ["Y", "N"], "title": "Choice"}
    schema = {"properties": {"choice": choice}, "required": ["choice"], "type": "object"}
    judge = {"name": "select_choice", "description": "Select a choice.", "parameters": schema}
    tools: Any = [{"type": "function", "function": judge}]
    engine.script = saying("")
    off: Any = {"reasoning_effort": "none"}
    asked(client, tools=tools, tool_choice=named("select_choice"), **off)
    asked(client, tools=openai.omit, extra_body={"guided_grammar": 'root ::= "a"'}, **off)
    for request in engine.requests:
        assert request.sampling.grammar is not None
        assert "think>" not in request.sampling.grammar.text


def test_switches_reach_the_template(client: openai.OpenAI, engine: FakeEngine) -> None:
    def prompt(**fields: Any) -> str:
        asked(client, tools=openai.omit, max_tokens=1, **fields)
        return bytes(prompt_of(engine.requests[-1])).decode()

    off = "<think>\n\n</think>\n\n"
    assert not prompt().endswith(off)
    assert prompt(reasoning_effort="none").endswith(off)
    assert not prompt(reasoning_effort="high").endswith(off)
    switch = {"chat_template_kwargs": {"enable_thinking": False}}
    assert prompt(extra_body=switch).endswith(off)
    assert prompt(extra_body=switch, reasoning_effort="high").endswith(off), "one's own goes first"
    with pytest.raises(openai.BadRequestError) as refused:
        prompt(reasoning_effort="bogus")
    assert refused.value.param == "reasoning_effort"


def test_reasoning_that_is_sent_back_is_shown_where_the_template_shows_it(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "noon"}
    for name in ("reasoning_content", "reasoning", "thinking"):
        asked(client, messages=[*HI, said | {name: THOUGHT}, result], max_tokens=1)
        prompt = bytes(prompt_of(engine.requests[-1])).decode()
        assert f"<think>\n{THOUGHT}\n</think>" in prompt
    asked(client, messages=[*HI, said, result], max_tokens=1)
    assert THOUGHT not in bytes(prompt_of(engine.requests[-1])).decode()


def test_openrouters_details_are_read(served: Served, engine: FakeEngine) -> None:
    """Read thoughts in `reasoning_details`, where a conversation begun at OpenRouter has them."""
    function = {"name": OSLO[0], "arguments": json.dumps(OSLO[1])}
    calls = [{"id": "0", "type": "function", "function": function}]
    result = {"role": "tool", "content": "rain", "tool_call_id": "0"}
    seal = {"type": "reasoning.encrypted", "data": "c2VhbGVk"}
    brief = {"type": "reasoning.summary", "summary": "I think"}
    text = {"type": "reasoning.text", "text": "\nso."}
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=20) as http:
        for reasoned in (
            {"reasoning": THOUGHT},
            {"reasoning_details": [brief, seal, text]},
            {"reasoning_details": [seal]},
        ):
            turn = {"role": "assistant", "content": None, "tool_calls": calls, **reasoned}
            body = {"model": MODEL, "messages": [*HI, turn, result], "tools": TOOLS}
            assert http.post("/v1/chat/completions", json=body).status_code == 200
    plain, detailed, sealed = map(prompt_of, engine.requests)
    assert plain == detailed != sealed
    assert THOUGHT.encode() in bytes(one for one in detailed if one < 256)
