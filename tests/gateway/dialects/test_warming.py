"""Requests that only compute their prompt, in each dialect: no token is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.gateway.served import MODEL, Served

LONG = "All the rules. " * 20
SAID: list[Any] = [{"role": "user", "content": LONG}]
KEPT: Any = {"ttl": "1h"}


@pytest.fixture
def claude(served: Served, engine: FakeEngine) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=served.url, api_key=served.key, max_retries=0, timeout=60
    ) as client:
        yield client


def expect_the_prompt_alone(engine: FakeEngine) -> None:
    """Check that the last request asked for no tokens and no grammar, but had the whole prompt."""
    request = engine.requests[-1]
    assert (request.sampling.max_tokens, request.sampling.grammar) == (0, None)
    assert len(prompt_of(request)) > len(LONG)


def test_messages(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    asked: Any = {"model": MODEL, "messages": SAID, "cache_control": {"type": "ephemeral", **KEPT}}
    warmed = claude.messages.create(max_tokens=0, **asked)
    expect_the_prompt_alone(engine)
    assert (warmed.content, warmed.stop_reason) == ([], "max_tokens")
    assert warmed.usage.output_tokens == 0
    assert warmed.usage.cache_creation
    written = warmed.usage.cache_creation.ephemeral_1h_input_tokens
    assert written > 300
    answered = claude.messages.create(max_tokens=3, **asked)
    assert (answered.usage.cache_read_input_tokens or 0) >= written
    assert answered.content


def test_a_stream_of_messages(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    with claude.messages.stream(model=MODEL, messages=SAID, max_tokens=0) as stream:
        kinds = [event.type for event in stream]
    assert kinds == ["message_start", "message_delta", "message_stop"]
    assert stream.get_final_message().stop_reason == "max_tokens"
    expect_the_prompt_alone(engine)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_chats(client: openai.OpenAI, engine: FakeEngine, name: str) -> None:
    fields: Any = {"model": MODEL, "messages": SAID, "response_format": {"type": "json_object"}}
    create: Any = client.chat.completions.create
    warmed = create(**fields, **{name: 0})
    expect_the_prompt_alone(engine)
    [choice] = warmed.choices
    assert (choice.message.content, choice.finish_reason) == ("", "length")
    assert warmed.usage
    assert warmed.usage.completion_tokens == 0
    answered = create(**fields, max_tokens=3)
    assert answered.usage.completion_tokens == 3
    assert (answered.usage.prompt_tokens_details.cached_tokens or 0) > len(LONG)


def test_text_completions(client: openai.OpenAI, engine: FakeEngine) -> None:
    warmed = client.completions.create(model=MODEL, prompt=LONG, max_tokens=0, echo=True)
    assert warmed.choices[0].text == LONG
    expect_the_prompt_alone(engine)


PREWARM: dict[str, dict[str, Any]] = {
    "prewarm": {"prompt_cache_options": {**KEPT, "prewarm": True}},
    "generate": {"generate": False, "prompt_cache_options": KEPT},
}


@pytest.mark.parametrize("name", PREWARM)
def test_responses(client: openai.OpenAI, engine: FakeEngine, name: str) -> None:
    warmed = client.responses.create(model=MODEL, input=LONG, extra_body=PREWARM[name])
    expect_the_prompt_alone(engine)
    assert (warmed.status, warmed.output) == ("completed", [])
    assert warmed.usage
    assert warmed.usage.output_tokens == 0
    written = warmed.usage.input_tokens_details.cache_write_tokens
    assert written > 300
    again = client.responses.create(model=MODEL, input=LONG, max_output_tokens=3)
    assert again.output
    assert again.usage
    assert again.usage.input_tokens_details.cached_tokens >= written
    assert again.usage.output_tokens == 3


def test_a_streamed_response(client: openai.OpenAI, engine: FakeEngine) -> None:
    events = list(
        client.responses.create(model=MODEL, input=LONG, stream=True, extra_body=PREWARM["prewarm"])
    )
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    expect_the_prompt_alone(engine)
