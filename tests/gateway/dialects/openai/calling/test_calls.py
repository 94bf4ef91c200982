"""Tool calls of the model in OpenAI's client, unstreamed and streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.openai.calling.hermes import (
    CLOCK,
    HI,
    OSLO,
    ROME,
    TOOLS,
    Call,
    allowed,
    named,
    written,
)


def asked(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    request = {"model": MODEL, "messages": HI, "tools": TOOLS, **fields}
    answer: ChatCompletion = client.chat.completions.create(**request)
    return answer


def streamed(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    """Send a streaming request; return the answer that the client's own helper assembles."""
    request = {"model": MODEL, "messages": HI, "tools": TOOLS, **fields}
    with client.chat.completions.stream(**request) as stream:
        stream.until_done()
        return stream.get_final_completion()


either = pytest.mark.parametrize("ask", [asked, streamed])


def calls_of(answer: ChatCompletion, choice: int = 0) -> list[Call]:
    calls = answer.choices[choice].message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    functions = [call.function for call in calls if call.type == "function"]
    return [(function.name, json.loads(function.arguments)) for function in functions]


@either
@pytest.mark.parametrize("per_step", [1, 3, 1000])
def test_calls_and_the_text_beside_them(
    client: openai.OpenAI, engine: FakeEngine, ask: Any, per_step: int
) -> None:
    engine.script, engine.per_step = saying(f"Let me see.\n{written(OSLO, CLOCK, ROME)}"), per_step
    answer = ask(client)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert calls_of(answer) == [OSLO, CLOCK, ROME]
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 3
    assert all(one.startswith("call_") for one in ids)


def test_a_message_of_calls_alone_has_no_content(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(written(OSLO))
    assert asked(client).choices[0].message.content is None


def test_chunks_of_calls_are_as_the_protocol_has_them(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying(written(OSLO, CLOCK))
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, stream=True)
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    assert deltas[0].role == "assistant"
    told = [call for delta in deltas for call in delta.tool_calls or ()]
    heads = [call for call in told if call.id]
    assert [(call.index, call.type) for call in heads] == [(0, "function"), (1, "function")]
    assert [call.function and call.function.name for call in heads] == ["weather", "clock"]
    rest = [call for call in told if not call.id]
    assert len(rest) > 2, "arguments come as they are written"
    assert all(call.type is None for call in rest)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@either
def test_choices_have_calls_and_ids_of_their_own(
    client: openai.OpenAI, engine: FakeEngine, ask: Any
) -> None:
    said = [written(OSLO), "No.", written(CLOCK, ROME)]
    engine.script = lambda request: list(said[int(request.request_id[-1])].encode())
    answer = ask(client, n=3)
    assert [calls_of(answer, index) for index in range(3)] == [[OSLO], [], [CLOCK, ROME]]
    reasons = [choice.finish_reason for choice in answer.choices]
    assert reasons == ["tool_calls", "stop", "tool_calls"]
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 3


@either
@pytest.mark.parametrize("choice", [None, "auto", allowed("auto", "weather", "clock")])
def test_calls_that_may_be_made(
    client: openai.OpenAI, engine: FakeEngine, ask: Any, choice: Any
) -> None:
    engine.script = saying(written(OSLO))
    assert calls_of(ask(client, tool_choice=choice)) == [OSLO]
    assert engine.requests[0].sampling.grammar is None
    engine.script = saying("Hello")
    answer = ask(client, tool_choice=choice)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"


MUST: dict[str, tuple[Any, set[str]]] = {
    "required": ("required", {"weather", "clock"}),
    "any": ("any", {"weather", "clock"}),
    "named": (named("weather"), {"weather"}),
    "allowed": (allowed("required", "clock"), {"clock"}),
}


@either
@pytest.mark.parametrize("case", MUST)
def test_calls_that_must_be_made_are_a_grammar(
    client: openai.OpenAI, engine: FakeEngine, ask: Any, case: str
) -> None:
    choice, names = MUST[case]
    call = CLOCK if "clock" in names else OSLO
    engine.script = saying(written(call))
    answer = ask(client, tool_choice=choice)
    assert calls_of(answer) == [call]
    assert answer.choices[0].finish_reason == "tool_calls"
    grammar = engine.requests[0].sampling.grammar
    assert grammar is not None
    assert {name for name in ("weather", "clock") if f"{name}\\" in grammar.text} == names


@either
def test_none_may_be_called(client: openai.OpenAI, engine: FakeEngine, ask: Any) -> None:
    text = written(OSLO)
    engine.script = saying(text)
    answer = ask(client, tool_choice="none")
    assert answer.choices[0].message.content == text
    assert not answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "stop"


@either
@pytest.mark.parametrize("choice", [None, allowed("auto", "clock")])
def test_a_call_of_what_may_not_be_called_is_text(
    client: openai.OpenAI, engine: FakeEngine, ask: Any, choice: Any
) -> None:
    text = written(OSLO if choice else ("rm", {"path": "/"}))
    engine.script = saying(text)
    answer = ask(client, tool_choice=choice)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == "stop"


@either
def test_without_parallel_calls_there_is_one(
    client: openai.OpenAI, engine: FakeEngine, ask: Any
) -> None:
    engine.script = saying(f"So.\n{written(OSLO, CLOCK)}\nAnd more.")
    assert calls_of(ask(client)) == [OSLO, CLOCK]
    answer = ask(client, parallel_tool_calls=False)
    assert calls_of(answer) == [OSLO]
    assert answer.choices[0].message.content == "So."
    assert answer.choices[0].finish_reason == "tool_calls"


@either
@pytest.mark.parametrize("more", [f"\n{written(CLOCK)}", "\nAnd more."])
def test_without_parallel_calls_no_more_is_generated_than_one(
    client: openai.OpenAI, engine: FakeEngine, ask: Any, more: str
) -> None:
    engine.script = saying(f"{written(OSLO)}{more}{'x' * 500}")
    answer = ask(client, parallel_tool_calls=False)
    assert calls_of(answer) == [OSLO]
    assert not answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "tool_calls"
    if answer.usage is not None:
        assert answer.usage.completion_tokens <= len(written(OSLO)) + len(more)
    assert (engine.cancelled, engine.finished) == (1, 0)
    # the answer has its end token, so it is not cut off
    engine.script = saying(f"{written(OSLO)}\n")
    assert calls_of(ask(client, parallel_tool_calls=False)) == [OSLO]
    assert (engine.cancelled, engine.finished) == (1, 1)


@either
def test_arguments_that_are_cut_off(client: openai.OpenAI, engine: FakeEngine, ask: Any) -> None:
    engine.script = saying(written(OSLO))
    cut = written(OSLO).index(', "days"')
    try:
        answer = ask(client, max_tokens=cut)
    # the client's helper parses the calls of strict tools
    except openai.LengthFinishReasonError as error:
        answer = error.completion
    [call] = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "length"
    assert call.function.arguments == '{"city": "Oslo"'


@either
def test_a_stop_string_ends_the_turn(client: openai.OpenAI, engine: FakeEngine, ask: Any) -> None:
    engine.script = saying(f"So. {written(OSLO, CLOCK)}")
    answer = ask(client, stop=["clock"])
    assert calls_of(answer) == [OSLO]
    answer = ask(client, stop=["<tool_call>"])
    assert answer.choices[0].message.content == "So. "
    assert answer.choices[0].finish_reason == "stop"


def test_log_probabilities_are_those_of_all_tokens(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    said = f"So.\n{written(OSLO)}"
    engine.script = saying(said)
    whole = asked(client, logprobs=True, top_logprobs=1).choices[0].logprobs
    assert whole is not None
    assert "".join(token.token for token in whole.content or ()) == said
    chunks = client.chat.completions.create(
        model=MODEL, messages=HI, tools=TOOLS, stream=True, logprobs=True
    )
    found = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [token.token for one in found if one for token in one.content or ()]
    assert "".join(streamed) == said


@pytest.mark.parametrize("choice", [named("clock"), allowed("required", "clock")])
def test_a_choice_without_a_type_is_a_function(
    client: openai.OpenAI, engine: FakeEngine, choice: Any
) -> None:
    # huggingface_hub's `ChatCompletionInputToolChoiceClass` sends the choice without `type`.
    untyped = json.loads(json.dumps(choice).replace('"type": "function", ', ""))
    assert untyped != choice
    asked(client, tool_choice=choice)
    asked(client, tool_choice=untyped)
    first, second = (request.sampling.grammar for request in engine.requests)
    assert first == second is not None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such choice": ({"tool_choice": "all"}, "tool_choice"),
    "no such tool": ({"tool_choice": named("rm")}, "tool_choice"),
    "no such allowed tool": ({"tool_choice": allowed("auto", "clock", "rm")}, "tool_choice"),
    "none allowed": ({"tool_choice": allowed("auto")}, "tool_choice"),
    "no tools": ({"tool_choice": "required", "tools": openai.omit}, "tool_choice"),
    "no name": ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_choice_that_cannot_be_made_is_refused(
    client: openai.OpenAI, engine: FakeEngine, case: str
) -> None:
    fields, param = WRONG[case]
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, **fields)
    assert refused.value.param == param
    assert engine.requests == []
