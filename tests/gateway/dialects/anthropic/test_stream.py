"""Streamed messages have events in Anthropic's order, and add up to the whole message.

The official client reads them.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message

from engine.errors import EngineDied
from tests.doubles.engine.fake_engine import FakeEngine, failing_at, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.anthropic.asking import CALL, CLOCK, HI, ask, events_of, post

THINKS: Any = {"type": "enabled", "budget_tokens": 1024}
ALL = f"Hm, late?</think>\n\nLet me see.\n{CALL}\n{CALL}"


def streamed(http: httpx.Client, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    answer = post(http, stream=True, **fields)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"]
    return events_of(answer)


@pytest.mark.parametrize("per_step", [1, 5, 1000])
def test_events_come_in_anthropics_order(
    http: httpx.Client, engine: FakeEngine, per_step: int
) -> None:
    engine.script, engine.per_step = saying(ALL), per_step
    events = streamed(http, thinking=THINKS, tools=[CLOCK])
    names = [name for name, _ in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-2:] == ["message_delta", "message_stop"]
    blocks = [
        (name, value["index"], value.get("content_block", value.get("delta", {})).get("type"))
        for name, value in events[2:-2]
    ]
    wanted: list[tuple[str, int, str | None]] = []
    for index, (kind, *deltas) in enumerate(
        [
            ("thinking", "thinking_delta", "signature_delta"),
            ("text", "text_delta"),
            ("tool_use", "input_json_delta"),
            ("tool_use", "input_json_delta"),
        ]
    ):
        wanted.append(("content_block_start", index, kind))
        wanted += [("content_block_delta", index, delta) for delta in deltas]
        wanted.append(("content_block_stop", index, None))
    assert list(dict.fromkeys(blocks)) == wanted
    assert blocks == sorted(blocks, key=wanted.index), "none comes again"


def test_what_each_event_says(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script, engine.per_step = saying(ALL), 1000
    streamed(http, thinking=THINKS, tools=[CLOCK])
    [(_, start), ping, *blocks, (_, delta), (_, stop)] = streamed(
        http, thinking=THINKS, tools=[CLOCK]
    )
    message = start["message"]
    usage = message.pop("usage")
    identity = message.pop("id")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    assert usage["cache_read_input_tokens"] > 0, "what was cached is known at the start"
    assert usage["cache_creation_input_tokens"] == 0
    assert ping == ("ping", {})
    tail = identity.removeprefix("msg_")[:20]
    said = [value for _, value in blocks]
    clock = {"type": "tool_use", "name": "clock", "input": {}}
    arguments = {"type": "input_json_delta", "partial_json": '{"zone": "UTC"}'}
    assert said == [
        {"index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm, late?"}},
        {"index": 0, "delta": {"type": "signature_delta", "signature": "unsigned"}},
        {"index": 0},
        {"index": 1, "content_block": {"type": "text", "text": ""}},
        {"index": 1, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"index": 1},
        {"index": 2, "content_block": {**clock, "id": f"toolu_{tail}00"}},
        {"index": 2, "delta": arguments},
        {"index": 2},
        {"index": 3, "content_block": {**clock, "id": f"toolu_{tail}01"}},
        {"index": 3, "delta": arguments},
        {"index": 3},
    ]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == len(ALL) + 1
    for field in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert delta["usage"][field] == usage[field]
    assert stop == {}


def as_sent(message: Message) -> dict[str, Any]:
    """Return a message without its ids, which differ for each request, and without fields that the
    client adds.
    """
    sent = json.loads(message.to_json())
    sent.pop("stop_details", None)
    for block in sent["content"]:
        block.pop("id", None)
    del sent["id"], sent["usage"]["input_tokens"], sent["usage"]["cache_read_input_tokens"]
    return dict(sent)


@pytest.mark.parametrize(
    "said",
    [ALL, "text alone", "a\n\nb </think> c", "x</think>", f"Hm</think>{CALL}", "", f"a{CALL}b"],
)
@pytest.mark.parametrize("display", ["summarized", "omitted", "updates"])
def test_a_stream_adds_up_to_the_whole_message(
    claude: anthropic.Anthropic, engine: FakeEngine, said: str, display: str
) -> None:
    engine.script = saying(said)
    fields: Any = {"thinking": {"type": "adaptive", "display": display}, "tools": [CLOCK]}
    whole = ask(claude, **fields)
    with claude.messages.stream(model=MODEL, max_tokens=400, messages=HI, **fields) as stream:
        summed = stream.get_final_message()
    assert as_sent(summed) == as_sent(whole)


def test_the_clients_own_events(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script, engine.per_step = saying(ALL), 4
    tools: list[Any] = [CLOCK]
    with claude.messages.stream(
        model=MODEL, max_tokens=400, messages=HI, tools=tools, thinking=THINKS
    ) as stream:
        events = list(stream)
    kinds = {event.type for event in events}
    assert {"thinking", "signature", "text", "input_json", "content_block_stop"} <= kinds
    assert "".join(event.text for event in events if event.type == "text") == "Let me see."
    assert "".join(one.thinking for one in events if one.type == "thinking") == "Hm, late?"
    calls = [
        event.content_block
        for event in events
        if event.type == "content_block_stop" and event.content_block.type == "tool_use"
    ]
    assert [call.input for call in calls] == [{"zone": "UTC"}] * 2


def test_text_alone_by_the_raw_stream(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = saying("one STOP two")
    with claude.messages.create(
        model=MODEL, max_tokens=400, messages=HI, stop_sequences=["STOP"], stream=True
    ) as stream:
        *_, delta, stop = list(stream)
    assert delta.type == "message_delta"
    assert (delta.delta.stop_reason, delta.delta.stop_sequence) == ("stop_sequence", "STOP")
    assert stop.type == "message_stop"


def test_a_stream_that_fails_ends_with_an_error(
    claude: anthropic.Anthropic, http: httpx.Client, engine: FakeEngine
) -> None:
    engine.script, engine.pace = saying("abcd"), failing_at(2, EngineDied("it died"))
    answer = post(http, stream=True)
    *events, (last, value) = events_of(answer)
    assert [name for name, _ in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
    ]
    assert last == "error"
    assert value["error"]["type"] == "overloaded_error"
    assert value["error"]["code"] == "engine_died"
    assert value["request_id"] == answer.headers["request-id"]
    with (
        pytest.raises(anthropic.APIStatusError) as failed,
        claude.messages.stream(model=MODEL, max_tokens=400, messages=HI) as stream,
    ):
        stream.until_done()
    assert "it died" in str(failed.value)


def test_a_stream_that_fails_before_its_first_token_is_a_status(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.pace = failing_at(0, EngineDied("it died"))
    with (
        pytest.raises(anthropic.APIStatusError) as failed,
        claude.messages.stream(model=MODEL, max_tokens=400, messages=HI),
    ):
        pass
    assert failed.value.status_code == 529


def test_a_client_that_leaves_ends_its_request(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying("x" * 300)
    with claude.messages.stream(model=MODEL, max_tokens=400, messages=HI) as stream:
        next(iter(stream))
    assert engine.wait_until(lambda engine: engine.running == 0)
