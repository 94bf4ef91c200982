from __future__ import annotations

import time

from engine.link.view_messages import Sequences, SequenceState, SequenceView
from gateway.overview.known import OwnRequest
from gateway.overview.requests import LISTED, RequestList, requests_under_way

NAMES = {"tn_a": "acme"}


def sequence(request_id: str, age_s: float, state: SequenceState = "decode") -> SequenceView:
    return SequenceView(request_id, "tn_a", state, age_s, 100, 64, 3)


def under_way(sequences: list[SequenceView], own: list[OwnRequest]) -> RequestList:
    told = Sequences(query_id="", total=len(sequences), sequences=sequences)
    return requests_under_way(told, own, NAMES, "tiny")


def own_request() -> OwnRequest:
    return OwnRequest("own", "tn_a", "/v1/completions", time.monotonic())


def test_choices_of_a_request_are_one() -> None:
    found = under_way([sequence("r-0", 9.0), sequence("r-1", 9.0), sequence("s-0", 1.0)], [])
    assert found.total == 2
    first, second = found.requests
    assert (first.request_id, first.prompt_tokens, first.generated_tokens) == ("r", 100, 6)
    assert (second.request_id, second.generated_tokens) == ("s", 3)
    assert (first.name, first.model, first.state) == ("acme", "tiny", "decode")


def test_the_route_is_known_for_own_ones() -> None:
    own = own_request()
    found = under_way([sequence(f"{own.id}-0", 5.0), sequence("other-0", 1.0)], [own])
    routes = {one.request_id: one.route for one in found.requests}
    assert routes == {own.id: "/v1/completions", "other": None}


def test_one_that_is_not_in_the_engine_is_in_the_gateway() -> None:
    own = own_request()
    (found,) = under_way([], [own]).requests
    assert (found.state, found.name, found.prompt_tokens) == ("gateway", "acme", None)


def test_the_oldest_come_first_and_few_are_listed() -> None:
    found = under_way([sequence(f"r{i}-0", float(i)) for i in range(LISTED + 50)], [])
    assert found.total == LISTED + 50
    assert len(found.requests) == LISTED
    assert found.requests[0].request_id == f"r{LISTED + 49}"
