from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestServer

from cli.load.sender import RequestOutcome, Sender, Transcript, refusal_code
from tests.cli.openai_double import OpenAIDouble, Script, usage

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n'
HELLO = b'data: {"choices":[{"delta":{"content":"hello"}}]}\n'
TEXT = b'data: {"choices":[{"text":"hello"}]}\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":6}}}\n'
)
DONE = b"data: [DONE]\n"


def heard(
    *lines: tuple[bytes, float], sent_at: float = 100.0, ended_at: float = 110.0
) -> RequestOutcome:
    transcript = Transcript(sent_at)
    for line, at in lines:
        transcript.hear(line, at)
    return transcript.outcome(ended_at)


def test_times_are_between_sending_and_chunks_with_content() -> None:
    outcome = heard(
        (b": comment\n", 100.1),
        (ROLE, 100.5),
        (HELLO, 101.0),
        (b"\n", 101.1),
        (HELLO, 101.5),
        (TEXT, 103.5),
        (END, 104.0),
        (USAGE, 104.5),
        (DONE, 105.0),
    )
    assert outcome == RequestOutcome(
        e2e_s=10.0,
        ttft_s=1.0,
        gaps_s=(0.5, 2.0),
        prompt_tokens=9,
        cached_tokens=6,
        output_tokens=4,
        sent_at=100.0,
        output_characters=15,
    )
    assert outcome.tpot_s == pytest.approx((103.5 - 101) / (4 - 1)), "without what ends it"


def test_chunks_without_text_count_where_every_chunk_does() -> None:
    counts = []
    for every_chunk in (False, True):
        transcript = Transcript(100.0, every_chunk)
        for line in (ROLE, TEXT, END, USAGE, DONE):
            transcript.hear(line, 101.0)
        counts.append(len(transcript.stamps))
    assert counts == [1, 2]


@pytest.mark.parametrize(
    ("delta", "characters"),
    [
        ({"reasoning_content": "so"}, 2),  # the field of Ratoon and SGLang
        ({"reasoning": "so"}, 2),  # the field of vLLM
        # the same text under both names counts once
        ({"reasoning": "so", "reasoning_content": "so"}, 2),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}, 2),
        ({"refusal": "no"}, 2),
        ({"tool_calls": [], "reasoning": None, "content": ""}, 0),
        ({"tool_calls": [{"index": 0, "function": None}]}, 0),
    ],
)
def test_reasoning_and_calls_are_tokens_as_text_is(delta: Any, characters: int) -> None:
    line = b"data: " + msgspec.json.encode({"choices": [{"delta": delta}]}) + b"\n"
    outcome = heard((ROLE, 100.5), (line, 101.0), (line, 102.0), (HELLO, 103.0), (DONE, 104.0))
    assert outcome.ttft_s == (1.0 if characters else 3.0)
    assert outcome.gaps_s == ((1.0, 1.0) if characters else ())
    assert outcome.output_characters == 2 * characters + 5


def test_a_stream_without_content_has_no_first_token() -> None:
    outcome = heard((ROLE, 101.0), (END, 102.0), (DONE, 103.0))
    assert (outcome.ttft_s, outcome.gaps_s, outcome.error) == (None, (), None)


def test_without_usage_the_chunks_are_counted_and_the_cache_is_unknown() -> None:
    outcome = heard((TEXT, 101.0), (TEXT, 102.0), (DONE, 103.0))
    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.cached_tokens) == (2, 0, None)


def test_null_fields_are_no_content() -> None:
    null = b'data: {"choices":[{"text":null},{"delta":{"content":null}}],"usage":null}\n'
    assert heard((null, 101.0), (DONE, 102.0)).ttft_s is None


def test_a_stream_that_just_ends_was_cut_off() -> None:
    assert heard((TEXT, 101.0)).error == "stream cut off"
    assert heard((TEXT, 101.0), (DONE, 102.0)).error is None


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (b'data: {"error":{"code":"engine_died","message":"x"}}\n', "stream engine_died"),
        (b'data: {"error":{"message":"x"}}\n', "stream error"),
        (b'data: {"error":"x"}\n', "stream error"),
    ],
)
def test_an_error_in_the_stream_counts_by_its_code(event: bytes, code: str) -> None:
    assert heard((TEXT, 101.0), (event, 102.0)).error == code
    assert heard((TEXT, 101.0), (event, 102.0), (DONE, 103.0)).error == code


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b'{"error":{"code":"queue_full"}}', "429 queue_full"),
        (b'{"error":{"code":null}}', "429"),
        (b'{"error":"x"}', "429"),
        (b"<html>", "429"),
        (b'{"error":{"code":"\xe9"}}', "429"),
        (b"", "429"),
    ],
)
def test_a_refusal_counts_by_status_and_code(content: bytes, name: str) -> None:
    assert refusal_code(429, content) == name


@asynccontextmanager
async def sender(double: OpenAIDouble, timeout_s: float = 10.0) -> AsyncIterator[Sender]:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=timeout_s)
    async with (
        TestServer(double.app()) as server,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        yield Sender(session, str(server.make_url("/v1/completions")), "secret")


async def test_a_whole_stream_is_read() -> None:
    double = OpenAIDouble([Script(("a", "b", "c"), usage=usage(8, 3, cached=4))])
    async with sender(double) as asking:
        outcome = await asking.ask({"prompt": [1, 2]})
    assert outcome.error is None
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (8, 3, 4)
    assert outcome.ttft_s is not None
    assert outcome.ttft_s + sum(outcome.gaps_s) <= outcome.e2e_s
    assert double.bodies == [{"prompt": [1, 2]}]
    assert double.keys == {"Bearer secret"}


async def test_waits_of_the_server_are_in_the_times() -> None:
    """Include the server's waits in the measured times.

    Only lower bounds are checked, since a busy machine may lengthen the times.
    """
    double = OpenAIDouble([Script((0.05, "a", 0.02, "b"), usage=usage(1, 2))])
    async with sender(double) as asking:
        outcome = await asking.ask({})
    assert outcome.ttft_s is not None
    assert outcome.ttft_s >= 0.05
    assert len(outcome.gaps_s) == 1
    assert outcome.e2e_s >= 0.07


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (Script(status=429), "429 rate_limit_exceeded"),
        (Script(("a",), done=False), "stream cut off"),
        (Script(("a", {"error": {"code": "engine_died"}})), "stream engine_died"),
        (Script((5.0, "a")), "timeout"),
    ],
)
async def test_what_goes_wrong_is_an_outcome(script: Script, error: str) -> None:
    async with sender(OpenAIDouble([script]), timeout_s=0.2) as asking:
        assert (await asking.ask({})).error == error


async def test_an_unreachable_server_is_an_outcome() -> None:
    async with aiohttp.ClientSession() as session:
        outcome = await Sender(session, "http://127.0.0.1:9/v1/completions", "k").ask({})
    assert outcome.error == "ClientConnectorError"
