from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import EngineDied, EngineFailure, EngineUnavailable
from engine.link.event_messages import Finished, Reused, Tokens
from engine.link.interface import OnEnd
from engine.link.messages import Generate, SamplingParams
from gateway.generation.choice import ChoiceEnded, Delta, Event
from gateway.generation.detokenizer import TokenDecoder
from gateway.generation.generation import generating
from gateway.prompts.generation_request import AdmittedRequest, TextRules
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.turn_formats.call_limit import CallLimit
from gateway.turn_formats.families.objects.hermes import HermesFormat
from gateway.turn_formats.turn_format import ToolSpec
from tests.doubles.engine.fake_engine import (
    EOS,
    FakeEngine,
    at_once,
    failing_at,
    hanging_at,
    saying,
)
from tests.doubles.engine.tiny_model import byte_tokenizer
from tests.gateway.dialects.openai.calling.hermes import CLOCK, written
from tests.gateway.support.plain_search import search

BYTES = Tokenizer(byte_tokenizer())


def admitted(
    *,
    choices: int = 1,
    stops: tuple[str, ...] = (),
    include: bool = False,
    sampling: SamplingParams | None = None,
) -> AdmittedRequest:
    return AdmittedRequest(
        generates=tuple(
            Generate(
                request_id=str(i),
                token_ids=b"\1\0\0\0\2\0\0\0",
                namespaces=(),
                block_keys=b"",
                flow="f",
                sampling=sampling or SamplingParams(max_tokens=1000),
            )
            for i in range(choices)
        ),
        choices=choices,
        prompt_tokens=2,
        text=TextRules(stops=stops, include_stop=include),
    )


async def events_of(
    engine: FakeEngine, request: AdmittedRequest, decoder: TokenDecoder = BYTES
) -> list[Event]:
    async with generating(engine, request, decoder) as events:
        return [event async for event in events]


def text_of(events: list[Event], index: int = 0) -> str:
    return "".join(e.text for e in events if isinstance(e, Delta) and e.index == index)


def end_of(events: list[Event], index: int = 0) -> ChoiceEnded:
    (ended,) = [e for e in events if isinstance(e, ChoiceEnded) and e.index == index]
    assert [e for e in events if e.index == index][-1] is ended
    return ended


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text("ab\N{GRINNING FACE}é", max_size=20),
    st.lists(st.text("ab\N{GRINNING FACE}é", min_size=1, max_size=4), max_size=3),
    st.integers(1, 7),
    st.booleans(),
)
async def test_stop_strings_whatever_the_steps(
    text: str, stops: list[str], per_step: int, include: bool
) -> None:
    engine = FakeEngine()
    engine.script, engine.per_step = saying(text), per_step
    events = await events_of(engine, admitted(stops=tuple(stops), include=include))
    expected, stop = search(text, stops, include=include)
    assert text_of(events) == expected
    assert end_of(events).reason == "stop"
    assert end_of(events).stopped_by == (EOS if stop is None else stop)
    if stop is not None:
        upto = expected if include else expected + stop
        assert end_of(events).completion_tokens == len(upto.encode())
        assert engine.cancelled == 1
    assert engine.running == 0


async def test_a_choice_ends_only_after_the_engine_was_cancelled() -> None:
    engine = FakeEngine()
    engine.script = saying("abSTOPcd")
    at_its_end: list[tuple[int, int]] = []
    async with generating(engine, admitted(stops=("STOP",)), BYTES) as events:
        async for event in events:
            if isinstance(event, ChoiceEnded):
                at_its_end.append((engine.running, engine.cancelled))
    assert at_its_end == [(0, 1)]


async def test_stop_strings_wait_for_min_tokens() -> None:
    engine = FakeEngine()
    engine.script = saying("xxxx")
    sampling = SamplingParams(max_tokens=10, min_tokens=2)
    events = await events_of(engine, admitted(stops=("x",), sampling=sampling))
    assert text_of(events) == "xx"
    assert end_of(events).completion_tokens == 3


async def test_a_stop_token_is_shown_on_request_alone() -> None:
    engine = FakeEngine()
    engine.script = saying("ab")
    sampling = SamplingParams(max_tokens=10, stop_token_ids=frozenset((EOS,)))
    hidden = await events_of(engine, admitted(sampling=sampling))
    assert text_of(hidden) == "ab"
    request = admitted(include=True, sampling=sampling)
    shown = AdmittedRequest(
        request.generates, 1, 2, TextRules(include_stop=True, skip_special_tokens=False)
    )
    assert text_of(await events_of(engine, shown)) == "ab<|eos|>"


@pytest.mark.parametrize("per_step", [1, 1000])
@pytest.mark.parametrize(("calls", "is_all"), [(1, True), (2, False)])
async def test_what_is_beyond_the_allowed_calls_is_known_as_not_shown(
    calls: int, is_all: bool, per_step: int
) -> None:
    engine = FakeEngine()
    engine.script, engine.per_step = saying(written(*[CLOCK] * calls)), per_step
    tools = (ToolSpec("clock", None),)
    request = replace(admitted(), parser=lambda: CallLimit(HermesFormat().parser(tools), 1))
    events = await events_of(engine, request)
    assert end_of(events).is_all_shown is is_all
    assert end_of(events).stopped_by == (EOS if is_all else None)


async def test_choices_are_merged() -> None:
    engine = FakeEngine()
    engine.script = lambda request: list(f"choice {request.request_id}".encode())
    events = await events_of(engine, admitted(choices=5))
    assert [text_of(events, i) for i in range(5)] == [f"choice {i}" for i in range(5)]
    assert [end_of(events, i).completion_tokens for i in range(5)] == [9] * 5


async def test_the_first_error_is_raised_once_and_cancels_the_others() -> None:
    engine = FakeEngine()

    async def pace(request: Generate, at: int) -> None:
        await (failing_at(2, EngineDied("died")) if request.request_id == "1" else hanging_at(3))(
            request, at
        )

    engine.pace = pace
    engine.script = saying("abcdef")
    with pytest.raises(EngineDied):
        await events_of(engine, admitted(choices=3))
    assert (engine.running, engine.failed, engine.cancelled) == (0, 1, 2)


async def test_leaving_early_cancels_before_it_returns() -> None:
    engine = FakeEngine()
    engine.pace = hanging_at(1)
    engine.script = saying("abc")
    async with generating(engine, admitted(choices=4), BYTES) as events:
        await anext(events)
        assert engine.running == 4
    assert (engine.running, engine.cancelled) == (0, 4)


async def test_a_cancelled_listener_cancels_all() -> None:
    engine = FakeEngine()
    engine.pace = hanging_at(1)
    engine.script = saying("abc")
    listening = asyncio.create_task(events_of(engine, admitted(choices=4)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.running == 4
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert (engine.running, engine.cancelled) == (0, 4)


async def test_a_slow_reader_holds_the_engines_stream_back() -> None:
    engine = FakeEngine()
    asked = []

    async def counted(request: Generate, at: int) -> None:
        asked.append(at)
        await at_once(request, at)

    engine.pace = counted
    engine.script = saying("x" * 900)
    async with generating(engine, admitted(), BYTES) as events:
        await anext(events)
        for _ in range(500):
            await asyncio.sleep(0)
        assert len(asked) < 100


class _OddEngine(FakeEngine):
    """An engine that ends its streams with an event that is not allowed there."""

    def __init__(self, last: Finished | None) -> None:
        super().__init__()
        self._last = last

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        yield Tokens(request_id=request.request_id, token_ids=(97,), reused=Reused())
        if self._last is not None:
            yield self._last


async def test_a_stream_that_breaks_off_is_a_failure() -> None:
    with pytest.raises(EngineFailure):
        await events_of(_OddEngine(None), admitted())


async def test_a_request_the_engine_gave_up_is_a_failure() -> None:
    given_up = Finished(request_id="0", reason="cancelled", prompt_tokens=2, completion_tokens=1)
    with pytest.raises(EngineUnavailable):
        await events_of(_OddEngine(given_up), admitted())


class _BrokenDecoder:
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        raise ZeroDivisionError

    def pieces(self, *, skip_special_tokens: bool) -> None:
        return None


async def test_a_bug_ends_the_request_too() -> None:
    engine = FakeEngine()
    engine.script = saying("abc")
    with pytest.raises(ZeroDivisionError):
        await events_of(engine, admitted(choices=2), _BrokenDecoder())
    assert engine.running == 0
