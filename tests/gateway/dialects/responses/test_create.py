"""`/v1/responses` answers the official client's requests without streams."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL

CLOCK: Any = {
    "type": "function",
    "name": "clock",
    "description": "tells é",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>'


def prompt(engine: FakeEngine) -> str:
    """Return the text of the last prompt, with `|` in place of the turn token."""
    ids = [ord("|") if token == 258 else token for token in prompt_of(engine.requests[-1])]
    return bytes(token for token in ids if token < 256).decode()


def test_a_text_is_answered(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Hello, wörld 😀")
    answer = client.responses.create(
        model=MODEL, input="Hi", instructions="Be brief", metadata={"a": "b"}, temperature=0.5
    )
    assert prompt(engine) == "|system:Be brief|user:Hi|assistant:"
    assert answer.output_text == "Hello, wörld 😀"
    [message] = answer.output
    assert message.type == "message"
    assert message.status == "completed"
    assert (answer.status, answer.object, answer.model) == ("completed", "response", MODEL)
    assert (answer.metadata, answer.instructions) == ({"a": "b"}, "Be brief")
    assert (answer.temperature, answer.top_p, answer.truncation) == (0.5, 1.0, "disabled")
    assert (answer.tools, answer.tool_choice, answer.parallel_tool_calls) == ([], "auto", True)
    assert answer.id.startswith("resp_")
    assert (answer.error, answer.incomplete_details) == (None, None)


def test_penalties_are_followed_and_shown(client: openai.OpenAI, engine: FakeEngine) -> None:
    asked: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": -0.5}
    for body, shown in ((asked, (0.5, -0.5)), ({}, (0.0, 0.0))):
        answer: Any = client.responses.create(model=MODEL, input="Hi", extra_body=body)
        assert (answer.presence_penalty, answer.frequency_penalty) == shown
        sampling = engine.requests[-1].sampling
        assert (sampling.presence_penalty, sampling.frequency_penalty) == shown
    assert (answer.top_logprobs, answer.max_tool_calls) == (0, None)


def test_usage(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("<think>ab</think>c")
    for cached in (0, 48):
        usage = client.responses.create(model=MODEL, input="x" * 40).usage
        assert usage is not None
        assert usage.input_tokens == len(prompt_of(engine.requests[0])) == 57
        assert usage.input_tokens_details.cached_tokens == cached
        assert usage.output_tokens == 19
        assert usage.output_tokens_details.reasoning_tokens > 0
        assert usage.total_tokens == 57 + 19


def test_input_tokens_are_those_of_the_usage(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    said = client.responses.create(model=MODEL, input="My name is Ada.")
    answered = len(engine.requests)
    asked: list[dict[str, Any]] = [
        {"input": "hi"},
        {"input": "hi", "instructions": "Be brief", "tools": [CLOCK], "tool_choice": "required"},
        {"input": "Who am I?", "previous_response_id": said.id, "reasoning": {"effort": "low"}},
        {"input": [{"type": "item_reference", "id": said.output[0].id}]},
    ]
    for fields in asked:
        counted = client.responses.input_tokens.count(model=MODEL, **fields)
        assert len(engine.requests) == answered
        assert counted.object == "response.input_tokens"
        usage = client.responses.create(model=MODEL, **fields).usage
        answered = len(engine.requests)
        assert usage is not None
        assert counted.input_tokens == usage.input_tokens


def test_input_tokens_of_a_prompt_beyond_the_context(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="x" * 5000)
    assert counted.input_tokens > 5000
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.input_tokens.count(model="other", input="x")
    assert refused.value.code == "model_not_found"


def test_a_conversation_is_not_compacted(client: openai.OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError, match="summary of it with /v1/responses") as refused:
        client.responses.compact(model=MODEL, input="x")
    assert (refused.value.code, refused.value.type) == ("unknown_url", "invalid_request_error")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-nobody").responses.compact(model=MODEL, input="x")
    assert engine.requests == []


def test_items_of_every_kind_reach_the_prompt(client: openai.OpenAI, engine: FakeEngine) -> None:
    items: Any = [
        {"role": "developer", "content": "rules"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_text", "text": "b", "prompt_cache_breakpoint": None},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "I", "annotations": []},
                {"type": "refusal", "refusal": "!"},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": '{"zone": "é"}'},
        {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "night"}],
        },
        {"role": "assistant", "content": "So"},
        {"role": "assistant", "content": "then"},
        {"role": "user", "content": "And?"},
    ]
    client.responses.create(model=MODEL, input=items, reasoning={"effort": "low"})
    calls = [
        '<tool_call>{"name": "clock", "arguments": {"zone": "é"}}</tool_call>',
        '<tool_call>{"name": "clock", "arguments": {}}</tool_call>',
    ]
    assert prompt(engine) == (
        f"|system:rules|user:a\nb|assistant:<think>hm</think>I!{''.join(calls)}"
        "|tool:noon|tool:night|assistant:So|assistant:then|user:And?|effort:low|assistant:"
    )


def test_a_function_is_called(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(f"<think>What time?</think>I look.{CALL}")
    answer = client.responses.create(model=MODEL, input="When?", tools=[CLOCK])
    shown = {"name": "clock", "description": "tells é", "parameters": CLOCK["parameters"]}
    tools = json.dumps([{"type": "function", "function": shown}], ensure_ascii=False)
    assert prompt(engine) == f"|tools:{tools}|user:When?|assistant:"
    reasoning, message, call = answer.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert [part.text for part in reasoning.content] == ["What time?"]
    assert reasoning.summary == []
    assert message.type == "message"
    assert answer.output_text == "I look."
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("clock", {"zone": "UTC"})
    assert answer.tools[0].to_dict() == CLOCK
    items: Any = [
        {"role": "user", "content": "When?"},
        *(item.to_dict() for item in answer.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "noon"},
    ]
    engine.script = saying("At noon.")
    client.responses.create(model=MODEL, input=items, tools=[CLOCK])
    assert prompt(engine) == (
        f"|tools:{tools}|user:When?|assistant:<think>What time?</think>I look.{CALL}"
        "|tool:noon|assistant:"
    )


@pytest.mark.parametrize(
    ("choice", "is_grammar"),
    [
        ("none", False),
        ("auto", False),
        ("required", True),
        ({"type": "function", "name": "clock"}, True),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "clock"}],
            },
            True,
        ),
    ],
)
def test_a_choice_of_tools_changes_no_prompt(
    client: openai.OpenAI, engine: FakeEngine, choice: Any, is_grammar: bool
) -> None:
    engine.script = saying(CALL)
    answer = client.responses.create(model=MODEL, input="x", tools=[CLOCK], tool_choice=choice)
    called = [item.type for item in answer.output] == ["function_call"]
    assert called is (choice != "none")
    assert prompt(engine).startswith("|tools:")
    assert (engine.requests[0].sampling.grammar is not None) is is_grammar


def test_several_calls_and_only_one(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(CALL + "\n" + CALL)
    answer = client.responses.create(model=MODEL, input="x", tools=[CLOCK])
    assert [item.type for item in answer.output] == ["function_call", "function_call"]
    assert len({item.id for item in answer.output}) == 2
    assert len({item.call_id for item in answer.output if item.type == "function_call"}) == 2
    many = client.responses.create(
        model=MODEL, input="x", tools=[CLOCK], tool_choice="required", parallel_tool_calls=False
    )
    assert many.parallel_tool_calls is False


class Place(BaseModel):
    city: str


def test_a_form_has_no_part_in_calls_that_must_come(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    asked: Any = {"model": MODEL, "input": "x", "tools": [CLOCK]}
    form: Any = {"format": {"type": "json_object"}}
    client.responses.create(**asked, tool_choice="required")
    client.responses.create(**asked, tool_choice="required", text=form)
    client.responses.create(**asked, text=form)
    alone, both, free = [request.sampling.grammar for request in engine.requests]
    assert alone is not None
    assert both == alone
    assert free not in (None, alone), "the control"


def test_a_schema_may_be_true(client: openai.OpenAI, engine: FakeEngine) -> None:
    anything: Any = {"format": {"type": "json_schema", "name": "any", "schema": True}}
    client.responses.create(model=MODEL, input="hi", text=anything)
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert '["json_schema","true"]' in grammar.text


def test_a_schema_is_parsed(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying('{"city": "Oslo"}')
    answer = client.responses.parse(model=MODEL, input="Where?", text_format=Place)
    assert answer.output_parsed == Place(city="Oslo")
    [request] = engine.requests
    assert request.sampling.grammar is not None
    assert "city" in request.sampling.grammar.text
    plain = client.responses.create(
        model=MODEL, input="x", text={"format": {"type": "json_object"}, "verbosity": "low"}
    )
    assert plain.text is not None
    assert plain.text.to_dict() == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert engine.requests[1].sampling.grammar is not None
    client.responses.create(model=MODEL, input="x", text={"format": {"type": "text"}})
    assert engine.requests[2].sampling.grammar is None


@pytest.mark.parametrize("said", ["abcdef", CALL, "<think>abcdef", "<think>ab</think>cd"])
def test_an_answer_that_is_cut_off_is_incomplete(
    client: openai.OpenAI, engine: FakeEngine, said: str
) -> None:
    engine.script = saying(said)
    most = len(said) - 2
    answer = client.responses.create(model=MODEL, input="x", tools=[CLOCK], max_output_tokens=most)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in answer.output if hasattr(item, "status")][-1] == "incomplete"
    assert answer.max_output_tokens == most


def test_an_empty_answer_is_an_empty_message(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("")
    answer = client.responses.create(model=MODEL, input="x")
    assert (answer.output_text, [item.type for item in answer.output]) == ("", ["message"])


def test_what_clients_also_send_is_taken(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    answer = client.responses.create(
        model=MODEL,
        input="x",
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        service_tier="auto",
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        top_logprobs=0,
        background=False,
        max_tool_calls=3,
        context_management=[{"type": "compaction", "compact_threshold": 10_000}],
        extra_body={"cache_salt": "salt", "unheard_of": 1},
    )
    assert (answer.output_text, answer.user, answer.prompt_cache_key) == ("ok", "u", "k")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"input": None}, "input"),
    "no such tier": ({"service_tier": "bogus"}, "service_tier"),
    "an empty input": ({"input": []}, "input"),
    "a number": ({"input": [{"role": "user", "content": 1}]}, "input[0].content"),
    "a role": ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    "no role": ({"input": ["x", {"content": "x"}][1:]}, "input[0].role"),
    "no content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
    ),
    "a part without text": (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    "a kind of item": ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    "a call without a name": (
        {"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
        "input[0].name",
    ),
    "arguments": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}]},
        "input[0].arguments",
    ),
    "an output of nothing": (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "input[0].call_id",
    ),
    "a reference": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    "a tool without a type": ({"tools": [CLOCK, {"name": "f"}]}, "tools[1].type"),
    "a nameless custom": ({"tools": [CLOCK, {"type": "custom"}]}, "tools[1].name"),
    "an empty space": ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
    "a member without a name": (
        {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]},
        "tools[0].tools[0].name",
    ),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
    "a choice": ({"tool_choice": "sometimes"}, "tool_choice"),
    "a choice of too many": (
        {
            "tools": [CLOCK],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "x"}] * 513,
            },
        },
        "tool_choice.tools",
    ),
    "too many tools that do not run": (
        {
            "input": [
                {"type": "additional_tools", "role": "developer", "tools": [{"type": "x"}] * 513}
            ]
        },
        "tools",
    ),
    "a choice of nothing": ({"tool_choice": "required"}, "tool_choice"),
    "a choice of another": (
        {"tools": [CLOCK], "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice",
    ),
    "a hosted choice": ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    "a form": ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    "no schema": ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    "effort": ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    "most": ({"max_output_tokens": 0}, "max_output_tokens"),
    "too much": ({"max_output_tokens": 100_000}, "input"),
    "too long": ({"input": "x" * 100_000}, "input"),
    "temperature": ({"temperature": 3}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "metadata": ({"metadata": {"a": 1}}, "metadata"),
    "long metadata": ({"metadata": {"a": "x" * 513}}, "metadata"),
    "background": ({"background": True}, "background"),
    "a conversation": ({"conversation": "conv_1"}, "conversation"),
    "a stored prompt": ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    "log-probabilities": ({"include": ["message.output_text.logprobs"]}, "include"),
    "top log-probabilities": ({"top_logprobs": 2}, "top_logprobs"),
    "truncation": ({"truncation": "auto"}, "truncation"),
    "a previous response": ({"previous_response_id": "resp_1"}, "previous_response_id"),
}


# errors of generating an answer, but not of counting the prompt's tokens
COUNTED = ("too much", "too long")


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(client: openai.OpenAI, engine: FakeEngine, name: str) -> None:
    changes, param = WRONG[name]
    body: dict[str, Any] = {"model": MODEL, "input": "x", **changes}
    for path in ("/responses", "/responses/input_tokens")[: 1 if name in COUNTED else 2]:
        with pytest.raises(openai.BadRequestError) as refused:
            client.post(path, cast_to=object, body=body)
        assert refused.value.param == param
    assert engine.requests == []


def test_another_model_is_not_found(client: openai.OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(model="other", input="x")
    assert refused.value.code == "model_not_found"


def test_errors_do_not_repeat_the_input(client: openai.OpenAI, engine: FakeEngine) -> None:
    canary = "canary-0c4e77d1"
    bodies: list[dict[str, Any]] = [
        {"input": [{"role": canary, "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": [canary]}]}]},
        {"input": [{"type": "function_call_output", "call_id": canary, "output": "x"}]},
        {"input": [{"type": "item_reference", "id": canary}]},
        {"tools": [{"type": "function", "name": canary, "parameters": canary}]},
        {"previous_response_id": canary},
    ]
    for body in bodies:
        with pytest.raises(openai.BadRequestError) as refused:
            client.post("/responses", cast_to=object, body={"model": MODEL, "input": "x", **body})
        assert canary not in refused.value.response.text
