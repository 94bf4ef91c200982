"""The engine's thread in grammars: each flow has its time there, and what is forced is kept."""

from __future__ import annotations

import pytest

from engine.errors import ConstraintUnsatisfied
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.flow_time import FlowTime
from engine.grammars.limits import DEBT_S, FREE_S, MOST_FORCED, SHARE
from engine.grammars.prepared import prepared
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar
from tests.gateway.support.manual_clock import ManualClock

LONG = 'start: x{400}\nx: "abc"'


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(50.0)


@pytest.fixture
def times(clock: ManualClock) -> FlowTime:
    return FlowTime(clock)


def constraint_of(
    vocabulary: Vocabulary, text: str, times: FlowTime, flow: str = "a"
) -> GrammarConstraint:
    grammar = compiled(prepared(Grammar("lark", text)), vocabulary)
    return GrammarConstraint(Compilation(grammar), flow, time_of_flows=times)


def test_short_calls_count_for_nothing(times: FlowTime) -> None:
    assert all(times.spend("a", FREE_S) for _ in range(10_000))
    assert times.debt("a") == 0.0
    assert times.spend("a", FREE_S + 0.01)
    assert times.debt("a") == pytest.approx(0.01)


def test_long_calls_are_a_flow_s_debt_and_it_drains(times: FlowTime, clock: ManualClock) -> None:
    assert times.spend("a", FREE_S + 0.999 * DEBT_S)
    assert not times.spend("a", FREE_S + 0.01)
    assert times.spend("a", FREE_S), "short calls go on"
    assert times.spend("b", FREE_S + 0.01), "another flow owes nothing"
    clock.advance(0.02 / SHARE)
    assert times.debt("a") == pytest.approx(DEBT_S - 0.0101)
    assert times.spend("a", FREE_S + 0.01)
    clock.advance(2 * DEBT_S / SHARE)
    assert times.debt("a") == times.debt("b") == 0.0


def test_who_owes_finds_no_forced_tokens(vocabulary: Vocabulary, times: FlowTime) -> None:
    one, other = (constraint_of(vocabulary, LONG, times, flow) for flow in "ab")
    times.spend("a", FREE_S + 0.01)
    assert one.forced() == ()
    assert other.forced()[:4] == (*b"abca",)


def test_forced_tokens_are_found_once_and_followed(vocabulary: Vocabulary, times: FlowTime) -> None:
    one = constraint_of(vocabulary, LONG, times)
    text = b"abc" * 400
    assert one.forced() == (*text[:MOST_FORCED],)
    times.spend("a", 60.0)  # it would find none
    for place in range(1, MOST_FORCED):
        one.advance(text[place - 1])
        assert one.forced() == (*text[place:MOST_FORCED],)
    one.advance(text[MOST_FORCED - 1])
    assert one.forced() == ()


def test_what_was_forced_is_no_more_once_another_token_came(
    vocabulary: Vocabulary, times: FlowTime
) -> None:
    one = constraint_of(vocabulary, 'start: "ab" ("cdef" | "xyz")', times)
    assert one.forced() == (*b"ab",)
    for token in b"abc":
        one.advance(token)
    assert one.forced() == (*b"def",)
    other = constraint_of(vocabulary, 'start: "ab" ("cdef" | "xyz")', times)
    for token in b"abx":
        other.advance(token)
    assert other.forced() == (*b"yz",)


@pytest.fixture
def slow(vocabulary: Vocabulary, times: FlowTime) -> GrammarConstraint:
    """A constraint whose tokens take long to follow once there are some hundred."""
    return constraint_of(vocabulary, 'start: e\ne: "a" | e e', times)


def test_a_grammar_whose_tokens_take_long_ends_its_request(slow: GrammarConstraint) -> None:
    followed = 0
    while slow.error is None and followed < 2000:
        slow.advance(ord("a"))
        followed += 1
    assert isinstance(slow.error, ConstraintUnsatisfied)
    assert "too long" in slow.error.message
    assert not slow.allowed().any()


def test_the_same_texts_by_an_unambiguous_grammar_end_nothing(
    vocabulary: Vocabulary, times: FlowTime
) -> None:
    """The control."""
    one = constraint_of(vocabulary, 'start: e\ne: e "a" | "a"', times)
    for _ in range(2000):
        one.advance(ord("a"))
    assert one.error is None
    assert one.allowed().any()
