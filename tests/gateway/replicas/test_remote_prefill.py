"""One engine computes a prompt and another answers. Faults of the first reach no client."""

from __future__ import annotations

import pytest

from engine.errors import EngineDied, EngineUnavailable, QueueFull
from engine.link.event_messages import Finished
from gateway.replicas.serving import Serving
from gateway.routing.route import OwnRouting
from tests.doubles.engine.fake_engine import ENGINE_SECONDS, failing_at, hanging_at
from tests.gateway.replicas.rig import Disaggregated, Fleet, asking, served_once, settled


def cached(end: object) -> tuple[int, int]:
    assert isinstance(end, Finished)
    return end.reused.tiers.total, end.reused.fetched


def told(fleet: Fleet, name: str) -> list[str]:
    return [one.request_id for one in fleet[name].requests]


async def test_a_prompt_is_computed_on_one_engine_and_answered_on_the_other() -> None:
    fleet = Disaggregated()
    async with asking(fleet) as [asked]:
        served_once(fleet, [asked])
    assert told(fleet, "a") == ["r0-0~p"]
    assert fleet["a"].requests[0].sampling.max_tokens == 1
    assert told(fleet, "b") == ["r0-0"]
    assert [fleet[name].requests[0].is_counted for name in "ab"] == [False, True]
    source = fleet["b"].requests[0].source
    assert source is not None
    assert (source.address, source.request_id, source.num_tokens) == ("/exchange/a", "r0-0~p", 20)
    assert fleet.notes.fetches == ["prompt"]
    assert cached(asked.ends[0]) == (0, 0), "it was computed for this request: nothing was cached"
    [end] = asked.ends
    assert isinstance(end, Finished)
    assert end.engine_seconds == 2 * ENGINE_SECONDS, "of both engines"
    assert {call[1:] for call in fleet.router.calls if call[0] == "began"} == {
        ("a", "r0-0~p"),
        ("b", "r0-0"),
    }


async def test_what_the_computing_engine_had_cached_is_cached_for_the_client() -> None:
    fleet = Disaggregated()
    fleet["c"].die()
    async with asking(fleet):
        pass
    fleet["b"].lose_cache()
    async with asking(fleet) as [again]:
        served_once(fleet, [again])
    assert cached(again.ends[0]) == (0, 16)
    async with asking(fleet) as [third]:
        served_once(fleet, [third])
    assert cached(third.ends[0]) == (16, 0), "now the answering one has it itself"


async def test_without_the_other_kind_an_engine_serves_alone() -> None:
    fleet = Disaggregated()
    fleet["a"].die()
    async with asking(fleet) as [asked]:
        served_once(fleet, [asked])
    assert fleet.served() == {"a": 0, "b": 1, "c": 0}
    fleet["a"].come()
    for name in "bc":
        fleet[name].die()
    async with asking(fleet) as [asked]:
        served_once(fleet, [asked])
    assert told(fleet, "a") == ["r0-0"]
    assert fleet["a"].requests[0].source is None


async def test_engines_that_send_no_blocks_compute_for_nobody() -> None:
    fleet = Disaggregated()
    fleet["a"].exchange = None
    fleet["a"].die()
    fleet["a"].come()
    async with asking(fleet) as [asked]:
        served_once(fleet, [asked])
    assert fleet.served() == {"a": 0, "b": 1, "c": 0}


async def test_a_short_prompt_is_computed_where_it_is_answered() -> None:
    fleet = Disaggregated()
    fleet.set._serving = Serving(fleet.set._members, OwnRouting(fleet.router), fleet.notes)
    async with asking(fleet) as [asked]:
        served_once(fleet, [asked])
    assert fleet.served() == {"a": 0, "b": 1, "c": 0}


async def test_a_request_that_loads_nothing_fetches_nothing() -> None:
    fleet = Disaggregated()
    async with asking(fleet, loads="never") as [asked]:
        served_once(fleet, [asked])
    assert fleet.served() == {"a": 0, "b": 1, "c": 0}


async def test_a_client_that_leaves_ends_both() -> None:
    fleet = Disaggregated()
    fleet.hang()
    async with asking(fleet):
        assert fleet["a"].running == fleet["b"].running == 1, "the control"
    await settled()
    assert (fleet["a"].cancelled, fleet["b"].cancelled) == (1, 1)
    assert sum(one.running for one in fleet.replicas) == 0
    assert not fleet.set._serving._unbegun


@pytest.mark.parametrize("refusal", [QueueFull.code, EngineUnavailable.code])
async def test_errors_of_the_computing_engine_reach_nobody(refusal: str) -> None:
    fleet = Disaggregated()
    fleet["a"].refusal = refusal
    async with asking(fleet) as [asked]:
        served_once(fleet, [asked])
    is_stopping = refusal == EngineUnavailable.code
    assert fleet.states()["a"] == ("draining" if is_stopping else "ready")
    fleet["a"].die()
    fleet["a"].come()
    fleet["a"].refusal, fleet["a"].pace = None, failing_at(0, EngineDied("it broke"))
    async with asking(fleet, 2) as both:
        served_once(fleet, both)


async def test_a_computing_engine_that_dies_leaves_its_prompts_to_the_answering_ones() -> None:
    fleet = Disaggregated()
    fleet["a"].computes.clear()
    async with asking(fleet) as [asked]:
        assert not asked.is_over, "the control: it waits for the prompt"
        fleet["a"].die()
        await settled()
        served_once(fleet, [asked])
    assert cached(asked.ends[0]) == (0, 0)
    assert fleet.moved == []


async def test_a_frozen_computing_engine_gives_back_its_prompts() -> None:
    fleet = Disaggregated()
    fleet["a"].computes.clear()
    async with asking(fleet) as [asked]:
        fleet["a"].is_stalled = True
        fleet.set._serving.rescue()
        await settled()
        served_once(fleet, [asked])
    assert fleet["a"].given_up == ["r0-0~p"]


async def test_an_answering_engine_that_dies_before_it_begins_is_followed_by_another() -> None:
    fleet = Disaggregated()
    fleet["b"].pace = hanging_at(0)
    async with asking(fleet) as [asked]:
        fleet["b"].die()
        await settled()
        served_once(fleet, [asked])
    assert told(fleet, "a") == ["r0-0~p"], "its prompt is not computed twice"
    source = fleet["c"].requests[0].source
    assert source is not None
    assert source.request_id == "r0-0~p"
    assert fleet.moved == ["b"]


async def test_what_has_begun_ends_with_its_engine() -> None:
    fleet = Disaggregated()
    fleet["b"].pace = hanging_at(3)
    async with asking(fleet) as [asked]:
        assert len(asked.tokens) == 3
        fleet["b"].die()
        await settled()
        assert isinstance(asked.error, EngineDied)


async def test_a_request_that_both_died_of_is_not_given_to_a_third() -> None:
    fleet = Disaggregated()
    fleet["a"].computes.clear()
    fleet["b"].pace = hanging_at(0)
    async with asking(fleet) as [asked]:
        fleet["a"].die()
        await settled()
        assert not asked.is_over, "the control"
        fleet["b"].die()
        await settled()
        assert isinstance(asked.error, EngineDied)
    assert fleet.served()["c"] == 0


async def test_one_that_was_not_waited_for_is_cancelled() -> None:
    fleet = Disaggregated()
    fleet["a"].pace = hanging_at(0)
    fleet["b"].exchange = {}  # no engine can fetch from b
    async with asking(fleet) as [asked]:
        served_once(fleet, [asked])
    await settled()
    assert fleet["a"].cancelled == 1


async def test_roles_are_shown() -> None:
    fleet = Disaggregated()
    roles = {name: health.role for name, health in fleet.set.replicas.items()}
    assert roles == {"a": "prefill", "b": "decode", "c": "decode"}
    fleet["a"].die()
    assert fleet.set.replicas["a"].role == "prefill", "as it said last"


async def test_a_replica_that_takes_no_requests_still_sends_blocks() -> None:
    fleet = Disaggregated()
    fleet["a"].refusal = EngineUnavailable.code
    async with asking(fleet):
        pass
    assert set(fleet.set._members.sources()) == {"a", "b", "c"}
    fleet["a"].is_stalled = True
    assert set(fleet.set._members.sources()) == {"b", "c"}
