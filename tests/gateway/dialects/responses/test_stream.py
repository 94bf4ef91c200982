"""Streams of `/v1/responses` have every event in order, numbered without a gap."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import openai
import pytest

from engine.errors import EngineDied, QueueFull
from engine.link.messages import Generate
from tests.doubles.engine.fake_engine import FakeEngine, failing_at, hanging_at, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.responses.test_create import CALL, CLOCK

SAID = f"<think>hm</think>I look.{CALL}"


def events_of(client: openai.OpenAI, **asked: Any) -> list[Any]:
    """Return all events of a stream; check that their numbers have no gap."""
    with client.responses.create(model=MODEL, input="x", stream=True, **asked) as stream:
        events: list[Any] = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def kinds(events: list[Any]) -> list[str]:
    """Return the types of the events without their common prefix; a repeated type is listed
    once.
    """
    names = [event.type.removeprefix("response.") for event in events]
    return [name for name, before in zip(names, [None, *names], strict=False) if name != before]


@pytest.mark.parametrize("per_step", [1, 7, 1000])
def test_every_event_in_order(client: openai.OpenAI, engine: FakeEngine, per_step: int) -> None:
    engine.script, engine.per_step = saying(SAID), per_step
    events = events_of(client, tools=[CLOCK])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    answer = events[-1].response
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in done] == [0, 1, 2]
    assert [event.item for event in done] == answer.output
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [item.id for item in added] == [item.id for item in answer.output]
    assert {item.status for item in added} == {"in_progress"}
    for delta, end in (
        ("output_text", "text"),
        ("reasoning_text", "text"),
        ("function_call_arguments", "arguments"),
    ):
        told = [e.delta for e in events if e.type == f"response.{delta}.delta"]
        [whole] = [getattr(e, end) for e in events if e.type == f"response.{delta}.done"]
        assert "".join(told) == whole
    assert {event.response.id for event in events if hasattr(event, "response")} == {answer.id}


def test_a_stream_ends_as_a_whole_answer_is(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(SAID)
    whole = client.responses.create(model=MODEL, input="x", tools=[CLOCK])
    streamed = events_of(client, tools=[CLOCK])[-1].response

    def comparable(answer: Any) -> Any:
        """Return a response without the fields that differ between any two answers."""
        plain = answer.to_dict()
        for item in plain["output"]:
            del item["id"]
            item.pop("call_id", None)
        changing = {"id", "created_at", "completed_at", "usage"}
        return {name: value for name, value in plain.items() if name not in changing}

    assert comparable(streamed) == comparable(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens  # type: ignore[union-attr]


def test_the_client_s_own_stream_helper(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(SAID)
    with client.responses.stream(model=MODEL, input="x", tools=[CLOCK]) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        answer = stream.get_final_response()
    assert text == answer.output_text == "I look."
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]


def test_on_the_wire(served: Served, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    answer = httpx.post(
        f"{served.url}/v1/responses",
        json={"model": MODEL, "input": "x", "stream": True},
        headers={"authorization": f"Bearer {served.key}"},
        timeout=60,
    )
    *frames, rest = answer.text.split("\n\n")
    assert rest == ""
    for frame in frames:
        name, data = frame.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in answer.text
    assert {"x-request-id", "openai-processing-ms"} <= answer.headers.keys()


def test_a_stream_that_is_cut_off_is_incomplete(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("abcdef")
    events = events_of(client, max_output_tokens=3)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-2].item.status == "incomplete"
    assert events[-1].response.output_text == "abc"


def test_a_stream_that_breaks_off_has_failed(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script, engine.pace = saying(SAID), failing_at(80, EngineDied("it died"))
    events = events_of(client, tools=[CLOCK])
    assert events[-1].type == "response.failed"
    answer = events[-1].response
    assert (answer.status, answer.error.code) == ("failed", EngineDied("").code)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_what_fails_at_once_has_a_status(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.pace = failing_at(0, QueueFull("full"))
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError):
            client.responses.create(model=MODEL, input="x", stream=stream)


def test_a_stream_ends_with_its_key(
    served: Served, client: openai.OpenAI, engine: FakeEngine
) -> None:
    operator = httpx.Client(
        base_url=served.url, headers={"authorization": f"Bearer {served.admin_key}"}
    )
    tenant = operator.post("/admin/tenants", json={"name": "brief"}).json()
    key = operator.post(f"/admin/tenants/{tenant['id']}/keys", json={}).json()["key"]
    hangs = threading.Event()
    hang = hanging_at(2)

    async def pace(request: Generate, at: int) -> None:
        if at >= 2:
            hangs.set()
        await hang(request, at)

    engine.script, engine.pace = saying("abcd"), pace
    with client.with_options(api_key=key).responses.create(
        model=MODEL, input="x", stream=True
    ) as stream:
        events: list[Any] = []
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and event.delta == "b":
                assert hangs.wait(10)
                operator.post(f"/admin/tenants/{tenant['id']}/disable")
    last = events[-1].to_dict()
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "tenant_disabled"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    operator.close()
