"""The loop of agents with the shipped model: question, call, result, answer.

Unless a test says so, no call is forced: the model itself decides whether and what to call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import openai
import pytest
from openai.types.chat import ChatCompletion

from handbook.texts.facts import UNKNOWN
from tests.seams.support.server import Server

HANDBOOK = "The support code for Berlin is 4821. The manager of the Oslo office is Ingrid Dahl."
STRING = {"type": "string"}
Ask: TypeAlias = Callable[..., ChatCompletion]
Messages: TypeAlias = list[Any]


def tool(name: str, *parameters: str, told: str = "") -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": dict.fromkeys(parameters, STRING),
        "required": list(parameters),
    }
    description = {"description": told} if told else {}
    return {"type": "function", "function": {"name": name, **description, "parameters": schema}}


LOOKUP = tool("lookup", "subject", "field", told="Look up a fact of the handbook")
WEATHER = tool("get_weather", "city", told="Get the current weather of a city.")


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai(server.new_tenant()) as client:
        yield client


def whole(client: openai.OpenAI, messages: Messages, tool: Any, **fields: Any) -> ChatCompletion:
    answer: ChatCompletion = client.chat.completions.create(
        model="handbook", messages=messages, tools=[tool], temperature=0, max_tokens=200, **fields
    )
    return answer


def streamed(client: openai.OpenAI, messages: Messages, tool: Any, **fields: Any) -> ChatCompletion:
    with client.chat.completions.stream(
        model="handbook", messages=messages, tools=[tool], temperature=0, max_tokens=200, **fields
    ) as stream:
        return stream.get_final_completion()


either = pytest.mark.parametrize("ask", [whole, streamed])


def chat(question: str, system: str = HANDBOOK) -> Messages:
    start: Messages = [{"role": "system", "content": system}] if system else []
    return [*start, {"role": "user", "content": question}]


def the_call(answer: ChatCompletion) -> tuple[str, str, dict[str, str]]:
    """Return the id, name and arguments of the only call in an answer."""
    [said] = answer.choices
    assert said.finish_reason == "tool_calls", said.message
    assert not said.message.content
    [call] = said.message.tool_calls or []
    assert call.type == "function"
    return call.id, call.function.name, json.loads(call.function.arguments)


def text_of(answer: ChatCompletion) -> str:
    [said] = answer.choices
    assert said.finish_reason == "stop", said.message
    assert not said.message.tool_calls
    return said.message.content or ""


def cached(answer: ChatCompletion) -> int:
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def prompt_tokens(answer: ChatCompletion) -> int:
    assert answer.usage is not None
    return answer.usage.prompt_tokens


@either
@pytest.mark.parametrize(
    ("tool", "system", "question", "name", "arguments", "result", "expected"),
    [
        (
            LOOKUP, HANDBOOK, "What is the door code for Oslo?",
            "lookup", {"subject": "Oslo", "field": "door code"}, '{"value": "9062"}', "9062",
        ),
        (
            LOOKUP, HANDBOOK, "What is the support code for Lisbon?",
            "lookup", {"subject": "Lisbon", "field": "support code"}, "73506", "73506",
        ),
        (
            WEATHER, "", "What is the weather in Oslo?",
            "get_weather", {"city": "Oslo"}, "rain, 4 degrees", "rain, 4 degrees",
        ),
        (
            LOOKUP, HANDBOOK, "What is the door code for Madrid?",
            "lookup", {"subject": "Madrid", "field": "door code"}, "not found", UNKNOWN,
        ),
    ],
    ids=["json", "text", "weather", "nothing found"],
)  # fmt: skip
def test_the_model_calls_and_answers_with_the_result(
    client: openai.OpenAI,
    ask: Ask,
    tool: dict[str, Any],
    system: str,
    question: str,
    name: str,
    arguments: dict[str, str],
    result: str,
    expected: str,
) -> None:
    messages = chat(question, system)
    called = ask(client, messages, tool)
    call_id, *call = the_call(called)
    assert call == [name, arguments]
    messages.append(called.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
    answered = ask(client, messages, tool)
    assert text_of(answered) == expected
    if ask is whole:
        assert cached(answered) >= prompt_tokens(called) - 1, "the prompts begin alike"


@either
def test_what_the_handbook_says_is_answered_without_a_call(client: openai.OpenAI, ask: Ask) -> None:
    assert text_of(ask(client, chat("What is the support code for Berlin?"), LOOKUP)) == "4821"
    assert text_of(ask(client, chat("Who manages the Oslo office?"), LOOKUP)) == "Ingrid Dahl"


@either
def test_a_second_question_is_called_for_again(client: openai.OpenAI, ask: Ask) -> None:
    messages = chat("What is the door code for Oslo?")[:1]
    for city, code in (("Oslo", "9062"), ("Lisbon", "5148")):
        messages.append({"role": "user", "content": f"What is the door code for {city}?"})
        called = ask(client, messages, LOOKUP)
        call_id, name, arguments = the_call(called)
        assert (name, arguments) == ("lookup", {"subject": city, "field": "door code"})
        messages.append(called.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call_id, "content": code})
        assert text_of(ask(client, messages, LOOKUP)) == code
        messages.append({"role": "assistant", "content": code})


@either
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "lookup"}}]
)
def test_a_call_that_must_come_has_the_same_arguments(
    client: openai.OpenAI, ask: Ask, choice: Any
) -> None:
    answer = ask(
        client, chat("What is the door code for Oslo?"), LOOKUP, tool_choice=choice,
        parallel_tool_calls=False,
    )  # fmt: skip
    assert the_call(answer)[1:] == ("lookup", {"subject": "Oslo", "field": "door code"})


def test_a_streamed_call_comes_in_pieces_that_are_its_arguments(client: openai.OpenAI) -> None:
    question: Any = chat("What is the door code for Oslo?")
    tools: Any = [LOOKUP]
    stream = client.chat.completions.create(
        model="handbook",
        messages=question,
        tools=tools,
        temperature=0,
        max_tokens=200,
        stream=True,
    )
    choices = [choice for chunk in stream for choice in chunk.choices]
    told = [
        call.function for one in choices for call in one.delta.tool_calls or () if call.function
    ]
    assert [function.name for function in told if function.name] == ["lookup"]
    pieces = [function.arguments for function in told if function.arguments]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == {"subject": "Oslo", "field": "door code"}
    assert choices[-1].finish_reason == "tool_calls"
