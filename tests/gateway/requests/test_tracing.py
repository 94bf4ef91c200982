"""Traces of whole requests have a span for every phase, named by OpenTelemetry's conventions.

A trace collector receives them.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes

from engine.errors import EngineFailure
from gateway.requests import tracing
from tests.doubles.engine.fake_engine import TIMING, failing_at, hanging_at
from tests.doubles.gateway.collector import attributes, collecting
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.support.traced import CHAT, Traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PHASES = ["admission", "queue", "match", "load", "prefill", "stream"]


def root_of(found: list[Span]) -> Span:
    (root,) = [span for span in found if span.name not in PHASES]
    return root


def phases_of(found: list[Span]) -> list[Span]:
    return sorted(
        (span for span in found if span.name in PHASES), key=lambda span: PHASES.index(span.name)
    )


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_trace_with_a_span_for_every_phase(traced: Traced, stream: bool) -> None:
    body = CHAT | {"stream": stream}
    found = traced.run(lambda _, client: client.post("/v1/chat/completions", json=body))
    root, phases = root_of(found), phases_of(found)
    assert root.name == f"chat {MODEL}"
    assert root.kind == Span.SPAN_KIND_SERVER
    assert [span.name for span in phases] == PHASES
    assert attributes(root)["gen_ai.request.stream"] is stream
    assert {span.trace_id for span in found} == {root.trace_id}
    assert {span.parent_span_id for span in phases} == {root.span_id}
    told = [seconds(span) for span in phases[1:5]]
    assert told == pytest.approx(
        [TIMING.queue, TIMING.match, TIMING.load, TIMING.prefill], abs=1e-3
    )
    for before, after in pairwise(phases[1:5]):
        assert after.start_time_unix_nano == pytest.approx(before.end_time_unix_nano, abs=1e6)


def test_the_root_tells_the_numbers_in_the_conventions_words(traced: Traced) -> None:
    body = CHAT | {"prompt_cache_options": {}}
    found = traced.run(lambda _, client: client.post("/v1/chat/completions", json=body))
    told = attributes(root_of(found))
    assert told["gen_ai.request.stream"] is False
    written = told["gen_ai.usage.cache_creation.input_tokens"]
    assert isinstance(written, int)
    assert written > 0
    assert told["gen_ai.usage.reasoning.output_tokens"] == 0
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == MODEL
    assert told["gen_ai.request.max_tokens"] == 4
    assert told["gen_ai.usage.output_tokens"] == 4
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told["http.route"] == "/v1/chat/completions"
    prompt_tokens = told["gen_ai.usage.input_tokens"]
    assert isinstance(prompt_tokens, int)
    assert prompt_tokens > 5
    first = told["gen_ai.response.time_to_first_chunk"]
    assert isinstance(first, float)
    assert 0 < first <= seconds(root_of(found)) + 1e-3


def test_every_attribute_is_one_of_the_conventions() -> None:
    known = {
        value
        for module in (gen_ai_attributes, http_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    used = {
        value
        for name, value in vars(tracing).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    }
    assert len(used) > 10
    assert used - {tracing.CLIENT_ID} <= known
    assert tracing.CLIENT_ID.startswith(http_attributes.HTTP_REQUEST_HEADER_TEMPLATE + ".")
    # positive control: an invented attribute is unknown
    assert "gen_ai.usage.tokens_of_input" not in known


def test_completions_and_cached_tokens(traced: Traced) -> None:
    body = {"model": MODEL, "prompt": "a" * 64, "max_tokens": 1}

    def twice(_: Served, client: httpx.Client) -> None:
        for _turn in range(2):
            client.post("/v1/completions", json=body)

    roots = [span for span in traced.run(twice) if span.name == f"text_completion {MODEL}"]
    cached = [attributes(span)["gen_ai.usage.cache_read.input_tokens"] for span in roots]
    assert sorted(map(str, cached)) == ["0", "64"]


def test_the_callers_trace_goes_on_and_the_answer_names_it(traced: Traced) -> None:
    answers = []

    def generation_request(_: Served, client: httpx.Client) -> None:
        headers = {"traceparent": PARENT, "tracestate": "vendor=secret-of-a-stranger"}
        answers.append(client.post("/v1/chat/completions", json=CHAT, headers=headers))

    root = root_of(traced.run(generation_request))
    assert root.trace_id.hex() == PARENT[3:35]
    assert root.parent_span_id.hex() == PARENT[36:52]
    expected = f"00-{root.trace_id.hex()}-{root.span_id.hex()}-01"
    assert answers[0].headers["traceresponse"] == expected
    assert not root.trace_state
    assert not any(b"stranger" in body for body in traced.collector.raw)


@pytest.mark.parametrize("parent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_traceparent_that_is_none_begins_a_new_trace(traced: Traced, parent: str) -> None:
    answers = []

    def generation_request(_: Served, client: httpx.Client) -> None:
        answers.append(
            client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": parent})
        )

    root = root_of(traced.run(generation_request))
    assert answers[0].status_code == 200
    assert not root.parent_span_id
    assert root.trace_id.strip(b"\0")


def test_a_caller_may_ask_not_to_be_traced(traced: Traced) -> None:
    headers = {"traceparent": PARENT[:-2] + "00"}
    found = traced.run(
        lambda _, client: client.post("/v1/chat/completions", json=CHAT, headers=headers)
    )
    assert found == []


def test_a_refusal_and_a_failure_say_what_they_were(traced: Traced) -> None:
    def generation_request(_: Served, client: httpx.Client) -> None:
        refused = client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 10**6})
        assert refused.status_code == 400
        assert "traceresponse" in refused.headers
        traced.engine.pace = failing_at(2, EngineFailure("broken"))
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 503

    found = traced.run(generation_request)
    roots = {str(attributes(span).get("error.type")): span for span in found if span.kind == 2}
    assert roots.keys() == {"context_length_exceeded", EngineFailure.code}
    assert roots[EngineFailure.code].status.code == Status.STATUS_CODE_ERROR
    refused = roots["context_length_exceeded"]
    assert not [span for span in found if span.parent_span_id == refused.span_id]


def test_a_client_that_goes_is_no_error_of_the_server(traced: Traced) -> None:
    def generation_request(_: Served, client: httpx.Client) -> None:
        traced.engine.pace = hanging_at(2)
        body = CHAT | {"stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
        assert traced.engine.wait_until(lambda engine: engine.cancelled == 1)

    root = root_of(traced.run(generation_request))
    assert attributes(root)["error.type"] == "cancelled"
    assert root.status.code != Status.STATUS_CODE_ERROR


def test_without_an_endpoint_nothing_is_traced_or_named(traced: Traced) -> None:
    with collecting() as collector:
        with traced.serving(None) as served, traced.client(served) as client:
            headers = {"traceparent": PARENT}
            answer = client.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert "traceresponse" not in answer.headers
        assert not collector.raw


def test_many_choices_are_one_trace_of_few_spans(traced: Traced) -> None:
    body = CHAT | {"n": 8}
    found = traced.run(lambda _, client: client.post("/v1/chat/completions", json=body))
    assert len(found) == 1 + len(PHASES)
    assert attributes(root_of(found))["gen_ai.request.choice.count"] == 8


async def test_spans_of_requests_that_run_together_do_not_mix(traced: Traced) -> None:
    async def all_at_once(served: Served) -> None:
        headers = {"authorization": f"Bearer {served.key}"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers) as client:
            asking = [client.post("/v1/chat/completions", json=CHAT) for _ in range(10)]
            answers = await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {200}

    def generation_request(served: Served, _: httpx.Client) -> None:
        asyncio.run(all_at_once(served))

    found = await asyncio.to_thread(traced.run, generation_request)
    by_trace: dict[bytes, list[str]] = {}
    for span in found:
        by_trace.setdefault(span.trace_id, []).append(span.name)
    assert len(by_trace) == 10
    assert all(sorted(names) == sorted([*PHASES, f"chat {MODEL}"]) for names in by_trace.values())
