"""A request's route, decided and recorded in one call."""

from __future__ import annotations

import pytest

from engine.link.messages import FetchSource
from gateway.routing.remote_prefill import RemotePrefillLimits
from gateway.routing.route import OwnRouting, Route, RouteQuestion, decide, sent_by
from gateway.routing.routers.first_token import FirstTokenRouter
from tests.engine.rigs.rig import Clock
from tests.gateway.routing.requests import request

READY = ("a", "b")
SOURCES = {name: f"/exchange/{name}" for name in "abc"}
LIMITS = RemotePrefillLimits(least_tokens=64)


def test_what_is_decided_is_known_to_the_next_question() -> None:
    one = FirstTokenRouter(Clock())
    found = []
    for number, begin in enumerate("xyyx"):
        asked = request(f"r{number}", *((begin, at) for at in range(64)), number)
        found.append(decide(one, RouteQuestion(asked, READY), LIMITS).answer.replica)
    assert found == ["a", "b", "b", "a"], "where the queue is shorter, or the beginning will be"


def test_a_prompt_that_is_computed_elsewhere_is_noted_there_and_is_the_source() -> None:
    one, asked = FirstTokenRouter(Clock()), request("r", *range(20))
    question = RouteQuestion(asked, READY, SOURCES, ("c",))
    route = decide(one, question, LIMITS)
    assert route.prompt is not None
    assert route.answer.source == FetchSource("/exchange/c", asked.tokens, "r~p")
    assert [(replica, sent.request_id) for replica, sent in sent_by(asked, route)] == [
        ("c", "r~p"),
        (route.answer.replica, "r"),
    ]
    assert one._loads.of("c").queued == asked.tokens
    assert one._loads.of(route.answer.replica).queued == 1, "the last one, since all else comes"


def test_who_has_no_exchange_computes_for_nobody() -> None:
    asked = request("r", *range(20))
    question = RouteQuestion(asked, READY, {"a": "/exchange/a"}, ("c",))
    assert decide(FirstTokenRouter(Clock()), question, LIMITS).prompt is None


def test_a_later_attempt_fetches_from_where_the_prompt_is_computed() -> None:
    source = FetchSource("/exchange/c", 321, "r~p")
    question = RouteQuestion(request("r~1", *range(20)), READY, SOURCES, (), source)
    route = decide(FirstTokenRouter(Clock()), question, LIMITS)
    assert route.answer.source == source
    assert route.prompt is None


def test_a_router_of_this_process_gives_nobody_else_a_turn() -> None:
    asking = OwnRouting(FirstTokenRouter(Clock())).route(RouteQuestion(request("r", 1), READY))
    with pytest.raises(StopIteration) as done:
        asking.send(None)
    assert isinstance(done.value.value, Route)
    assert not done.value.value.is_alone
