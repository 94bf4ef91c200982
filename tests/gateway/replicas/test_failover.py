"""Requests that have not begun move when their replica dies, hangs, stops or is full."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import (
    EngineDied,
    EngineError,
    EngineUnavailable,
    NumericFailure,
    PromptTooLong,
    QueueFull,
)
from engine.link.event_messages import Failed
from gateway.dialects.finished_choice import FinishedChoice, gather
from gateway.generation.choice import Event
from gateway.generation.generation import generating
from gateway.prompts.generation_request import AdmittedRequest, TextRules
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.doubles.engine.fake_engine import failing_at, hanging_at
from tests.doubles.engine.tiny_model import byte_tokenizer
from tests.engine.rigs.rig import generate
from tests.gateway.replicas.rig import Fleet, asking, prompt, served_once, settled, until


async def test_requests_are_spread_and_each_is_served_once() -> None:
    fleet = Fleet()
    async with asking(fleet, 9) as asked:
        served_once(fleet, asked)
    assert fleet.served() == {"a": 3, "b": 3, "c": 3}
    assert fleet.moved == []


async def test_what_had_not_begun_on_a_dead_replica_runs_elsewhere_unseen() -> None:
    fleet = Fleet()
    fleet["a"].pace = hanging_at(0)
    async with asking(fleet, 3) as asked:
        assert [one.is_over for one in asked] == [False, True, True], "the control: a has one"
        fleet["a"].die()
        await settled()
        served_once(fleet, asked)
    assert fleet.served() == {"a": 1, "b": 2, "c": 1}
    assert fleet.moved == ["a"]
    again = [call for call in fleet.router.calls if call[2].startswith("r0")]
    assert again == [
        ("sent", "a", "r0-0"),
        ("ended", "a", "r0-0"),
        ("sent", "b", "r0-0~1"),
        ("began", "b", "r0-0~1"),
        ("ended", "b", "r0-0~1"),
    ]
    assert ("gone", "a", "") in fleet.router.calls


async def test_a_replica_with_too_small_a_pool_is_not_given_what_another_one_has_left() -> None:
    """Send a request to no replica whose pool is too small for it, even if the replica joined after
    admission.

    The client gets no error for a too long prompt, since another replica may have room.
    """
    fleet = Fleet()
    fleet["b"].max_model_len = 30
    fleet["b"].die()
    fleet["c"].die()
    fleet["a"].pace = hanging_at(0)
    async with asking(fleet, 2) as asked:
        assert fleet.served() == {"a": 2, "b": 0, "c": 0}
        fleet["b"].come()
        fleet["a"].is_stalled = True
        fleet.set._serving.rescue()
        await settled()
        assert not any(one.is_over for one in asked), "b is no place for them: they wait for a"
        fleet["c"].come()
        fleet["a"].die()
        await settled()
        served_once(fleet, asked)
    assert fleet.served() == {"a": 2, "b": 0, "c": 2}
    async with asking(fleet, 4, max_tokens=10):
        assert fleet.served()["b"] == 2, "the control: it serves what it has room for"


async def test_what_had_begun_ends_with_the_typed_error() -> None:
    fleet = Fleet()
    fleet["a"].pace = hanging_at(3)
    async with asking(fleet) as [asked]:
        assert len(asked.tokens) == 3
        fleet["a"].die()
        await settled()
        assert isinstance(asked.error, EngineDied)
    assert fleet.served() == {"a": 1, "b": 0, "c": 0}


async def test_an_answer_that_is_shown_whole_is_computed_anew_when_its_engine_dies() -> None:
    fleet = Fleet()
    fleet["a"].pace = hanging_at(3)
    async with asking(fleet, is_whole=True) as [asked]:
        fleet["a"].die()
        await settled()
        served_once(fleet, [asked])
    assert fleet.served() == {"a": 1, "b": 1, "c": 0}
    assert fleet.moved == ["a"]


@pytest.mark.parametrize("is_whole", [True, False])
async def test_what_had_come_of_a_whole_answer_is_no_part_of_it(is_whole: bool) -> None:
    fleet, seen = Fleet(), list[Event]()
    fleet["a"].pace = hanging_at(3)
    request = generate("r0-0", prompt(), max_tokens=20, block_size=16)
    admitted = AdmittedRequest((request,), 1, 20, TextRules())
    decoder = Tokenizer(byte_tokenizer())

    async def answered() -> list[FinishedChoice]:
        running = generating(fleet.set, admitted, decoder, seen.append, is_whole=is_whole)
        async with running as events:
            return await gather(events)

    task = asyncio.create_task(answered())
    await until(lambda: len(seen) == 3)
    fleet["a"].die()
    if is_whole:
        [choice] = await task
        assert list(choice.token_ids) == prompt()
    else:
        with pytest.raises(EngineDied):
            await task


async def test_a_whole_answer_is_computed_anew_when_its_engine_stops_as_often_as_that_is() -> None:
    """Compute an unstreamed answer anew each time its engine stops.

    A stopping engine gives up running requests after its grace period.
    """
    fleet, seen = Fleet(), list[Event]()
    for name in "ab":
        fleet[name].pace = failing_at(3, EngineUnavailable("the engine stopped"))
    request = generate("r0-0", prompt(), max_tokens=20, block_size=16)
    admitted = AdmittedRequest((request,), 1, 20, TextRules())
    decoder = Tokenizer(byte_tokenizer())
    async with generating(fleet.set, admitted, decoder, seen.append, is_whole=True) as events:
        [choice] = await gather(events)
    assert list(choice.token_ids) == prompt()
    assert fleet.served() == {"a": 1, "b": 1, "c": 1}
    assert fleet.moved == ["a", "b"]
    fleet["c"].die()
    with pytest.raises(EngineUnavailable, match="the engine stopped"):
        async with generating(fleet.set, admitted, decoder, is_whole=False) as events:
            await gather(events)  # positive control: a stream


async def test_a_whole_answer_that_two_engines_died_of_is_not_computed_by_a_third() -> None:
    fleet = Fleet()
    fleet.hang(at=3)
    async with asking(fleet, is_whole=True) as [asked]:
        for name in "ab":
            fleet[name].die()
            await settled()
        assert type(asked.error) is EngineDied
    assert fleet.served() == {"a": 1, "b": 1, "c": 0}


async def test_a_whole_answer_ends_with_the_error_where_no_other_replica_is_ready() -> None:
    fleet = Fleet()
    fleet["a"].pace = hanging_at(3)
    for name in "bc":
        fleet[name].die()
    async with asking(fleet, is_whole=True) as [asked]:
        fleet["a"].die()
        await settled()
        assert type(asked.error) is EngineDied


async def test_a_replica_that_was_full_when_it_was_sent_may_compute_a_whole_answer_anew() -> None:
    fleet = Fleet()
    for name in "bc":
        fleet[name].refusal = QueueFull.code
    fleet["a"].pace = hanging_at(3)
    async with asking(fleet, 2, is_whole=True) as asked:
        assert [len(one.tokens) for one in asked] == [3, 3], "the control: the others were full"
        assert fleet.served() == {"a": 2, "b": 0, "c": 0}
        fleet["b"].refusal = fleet["c"].refusal = None
        fleet["a"].die()
        await settled()
        served_once(fleet, asked)
    assert fleet.served() == {"a": 2, "b": 1, "c": 1}


async def test_a_request_that_two_engines_died_of_is_not_given_to_a_third() -> None:
    fleet = Fleet()
    fleet.hang()
    async with asking(fleet) as [asked]:
        fleet["a"].die()
        await settled()
        assert not asked.is_over, "the control: one death is none of its fault"
        fleet["b"].die()
        await settled()
        assert isinstance(asked.error, EngineDied)
    assert fleet.served() == {"a": 1, "b": 1, "c": 0}


async def test_the_last_replica_s_death_reaches_the_client() -> None:
    fleet = Fleet()
    fleet.hang()
    fleet["b"].die()
    fleet["c"].die()
    async with asking(fleet) as [asked]:
        fleet["a"].die()
        await settled()
        assert isinstance(asked.error, EngineDied)
    async with asking(fleet) as [late]:
        assert isinstance(late.error, EngineUnavailable)
        assert late.error.retry_after_s is not None


async def test_a_frozen_replica_loses_what_has_not_begun_and_keeps_what_has() -> None:
    fleet = Fleet()
    fleet["a"].pace = hanging_at(0)
    fleet["b"].pace = hanging_at(3)
    async with fleet.set.kept(), asking(fleet, 2) as asked:
        fleet["a"].is_stalled = fleet["b"].is_stalled = True
        fleet.set._serving.rescue()
        await settled()
        assert asked[0].is_over
        assert asked[0].error is None
        assert fleet["a"].given_up == ["r0-0"]
        assert (fleet["b"].given_up, asked[1].is_over) == ([], False)
        assert [type(end).__name__ for end in asked[0].ends] == ["Finished"]
        fleet["b"].is_stalled = False
        assert len(asked[1].tokens) == 3


async def test_where_all_are_frozen_requests_wait_for_the_one_they_are_on() -> None:
    fleet = Fleet()
    fleet.hang()
    async with asking(fleet) as [asked]:
        for one in fleet.replicas:
            one.is_stalled = True
        fleet.set._serving.rescue()
        await settled()
        assert not asked.is_over
        assert fleet.set.is_stalled
        assert sum(len(one.given_up) for one in fleet.replicas) == 0


async def test_a_replica_that_stops_gets_no_more_requests_until_it_is_another() -> None:
    fleet = Fleet()
    fleet["a"].refusal = EngineUnavailable.code
    async with asking(fleet, 1) as asked:
        served_once(fleet, asked)
    assert fleet.states() == {"a": "draining", "b": "ready", "c": "ready"}
    fleet["a"].refusal = None
    async with asking(fleet, 1):
        assert fleet.served()["a"] == 0
    fleet["a"].die()
    fleet["a"].come()
    async with asking(fleet, 1):
        assert fleet.served()["a"] == 1, "the control"


async def test_a_full_queue_is_an_answer_only_when_all_are_full() -> None:
    fleet = Fleet()
    fleet["a"].refusal = fleet["b"].refusal = QueueFull.code
    async with asking(fleet) as asked:
        served_once(fleet, asked)
    fleet["c"].refusal = QueueFull.code
    async with asking(fleet) as [refused]:
        assert isinstance(refused.error, QueueFull)
        assert [type(end) for end in refused.ends] == [Failed]


@pytest.mark.parametrize("error", [NumericFailure("nan"), PromptTooLong("long")])
async def test_what_the_request_itself_is_to_blame_for_is_not_tried_again(
    error: EngineError,
) -> None:
    fleet = Fleet()
    fleet["a"].pace = failing_at(0, error)
    async with asking(fleet) as [asked]:
        assert asked.error is error
    assert fleet.served() == {"a": 1, "b": 0, "c": 0}


async def test_a_client_that_leaves_cancels_and_its_end_is_counted_once() -> None:
    fleet = Fleet()
    fleet["a"].pace = hanging_at(0)
    async with asking(fleet) as [asked]:
        pass
    assert fleet["a"].cancelled == 1
    assert len(asked.ends) == 1
    assert fleet.router.calls[-1] == ("ended", "a", "r0-0")


async def test_an_engine_with_another_fingerprint_is_refused_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet()
    stranger = fleet["b"]
    stranger.fingerprint = b"other"
    assert fleet.set.welcome is not None
    stranger.die()
    stranger.come()
    assert fleet.states() == {"a": "ready", "b": "refused", "c": "ready"}
    assert b"other".hex() in fleet.set.replicas["b"].why
    assert "replica b is refused" in caplog.text
    async with asking(fleet, 6) as asked:
        served_once(fleet, asked)
    assert fleet.served() == {"a": 3, "b": 0, "c": 3}
    for name in "ac":
        fleet[name].die()
    assert fleet.states()["b"] == "refused", "the others will be back"
    fleet["a"].come()
    assert fleet.states() == {"a": "ready", "b": "refused", "c": "absent"}
    fleet["c"].handshake_error = "another key"
    assert fleet.states()["c"] == "handshake_failed"
    assert fleet.set.replicas["c"].why == "another key"
    fleet["c"].handshake_error = None
    assert fleet.states()["c"] == "absent"
    for name in "ac":
        fleet[name].fingerprint = b"other"
        fleet[name].die()
        fleet[name].come()
    assert fleet.states() == dict.fromkeys("abc", "ready"), "now all are of the other"
