"""A step's time limit for grammars: flows share it; constraints over the limit are advanced in a
later step.
"""

from __future__ import annotations

import pytest

from engine.errors import ConstraintUnsatisfied
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.limits import LEAST_SHARE_S, MOST_FORCED, STEP_S
from engine.grammars.prepared import prepared
from engine.grammars.step_time import StepTime
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar

LONG = 'start: x{400}\nx: "abc"'
CALL_S = STEP_S / 4


class Dear(StepTime):
    """A step time that charges `CALL_S` for each call."""

    calls = 0

    def spend(self, flow: str, seconds: float, *, is_late: bool = False) -> None:
        self.calls += 1
        super().spend(flow, CALL_S, is_late=is_late)


@pytest.fixture
def times() -> StepTime:
    return StepTime()


def constraint_of(
    vocabulary: Vocabulary, text: str, times: StepTime | None, flow: str = "a"
) -> GrammarConstraint:
    grammar = compiled(prepared(Grammar("lark", text)), vocabulary)
    return GrammarConstraint(Compilation(grammar), flow, step_time=times)


def test_flows_share_a_step_and_none_takes_of_another_s_next_one(times: StepTime) -> None:
    assert times.may("a", 0.9 * STEP_S), "it is alone"
    assert not times.may("a", STEP_S)
    times.spend("b", STEP_S / 100)
    times.spend("a", 0.9 * STEP_S)
    times.next_step()
    times.spend("a", STEP_S / 2)
    assert not times.may("a", 0.0)
    assert times.may("b", 0.4 * STEP_S)
    assert times.may_draft("b", 0.2 * STEP_S)
    assert not times.may_draft("b", 0.4 * STEP_S), "half is left for what must be followed"
    times.next_step()
    assert times.may("a", 0.4 * STEP_S), "the control: the step before is over"


def test_a_step_has_an_end_however_many_flows_there_are(times: StepTime) -> None:
    for number in range(1000):
        times.spend(f"f{number}", 0.0)
    times.next_step()
    begun = 0
    while times.may(f"f{begun}", 0.9 * LEAST_SHARE_S):
        times.spend(f"f{begun}", LEAST_SHARE_S)
        begun += 1
    assert begun == pytest.approx(STEP_S / LEAST_SHARE_S, abs=1)


def test_late_calls_take_none_of_the_other_flows_time(times: StepTime) -> None:
    times.spend("a", 10 * STEP_S, is_late=True)
    assert not times.may("a", 0.0)
    assert times.may("b", 0.9 * STEP_S)
    times.spend("a", 10 * STEP_S)
    assert not times.may("b", 0.0), "the control"


def test_rows_of_a_flow_that_each_take_a_little_do_not_hold_a_step(vocabulary: Vocabulary) -> None:
    times = Dear()
    rows = [constraint_of(vocabulary, 'start: "ab"', times) for _ in range(12)]
    for row in rows:
        row.advance(ord("a"))
    assert times.calls == STEP_S / CALL_S
    assert [row.is_behind for row in rows] == [False] * 4 + [True] * 8
    late, control = rows[-1], rows[0]
    times.next_step()
    assert (late.allowed() == control.allowed()).all()
    assert not late.is_behind


def test_a_neighbour_s_row_is_followed_in_its_step(vocabulary: Vocabulary) -> None:
    times = Dear()
    times.spend("b", 0.0)
    times.spend("a", 0.0)
    times.next_step()
    for _ in range(12):
        constraint_of(vocabulary, 'start: "ab"', times).advance(ord("a"))
    one = constraint_of(vocabulary, 'start: "ab"', times, "b")
    one.advance(ord("a"))
    assert not one.is_behind


def test_a_constraint_that_is_behind_is_over_once_it_caught_up(
    vocabulary: Vocabulary, times: StepTime
) -> None:
    one = constraint_of(vocabulary, 'start: "ab"', times)
    times.spend("a", STEP_S)
    for token in b"ab":
        one.advance(token)
        times.next_step()  # a constraint that is behind processes its tokens in order
    assert one.is_behind
    assert not one.is_over
    assert one.forced() == ()
    assert one.catch_up() > 0
    assert one.is_over


def test_who_has_no_time_left_finds_no_forced_tokens(
    vocabulary: Vocabulary, times: StepTime
) -> None:
    one, other = (constraint_of(vocabulary, LONG, times, flow) for flow in "ab")
    times.spend("a", STEP_S, is_late=True)
    assert one.forced() == ()
    other_s = other.forced()
    assert other_s[:4] == (*b"abca",)
    times.next_step()
    assert one.forced() == other_s


def test_forced_tokens_are_found_once_and_followed(vocabulary: Vocabulary) -> None:
    one = constraint_of(vocabulary, LONG, None)
    text = b"abc" * 400
    for place in range(1, MOST_FORCED):
        assert one.forced() == (*text[place - 1 : MOST_FORCED],)
        one.advance(text[place - 1])


def test_what_was_forced_is_no_more_once_another_token_came(vocabulary: Vocabulary) -> None:
    one = constraint_of(vocabulary, 'start: "ab" ("cdef" | "xyz")', None)
    assert one.forced() == (*b"ab",)
    for token in b"abc":
        one.advance(token)
    assert one.forced() == (*b"def",)
    other = constraint_of(vocabulary, 'start: "ab" ("cdef" | "xyz")', None)
    for token in b"abx":
        other.advance(token)
    assert other.forced() == (*b"yz",)


@pytest.mark.parametrize(("start", "ends"), [('e: "a" | e e', True), ('e: e "a" | "a"', False)])
def test_a_grammar_whose_tokens_take_long_ends_its_request(
    vocabulary: Vocabulary, times: StepTime, start: str, ends: bool
) -> None:
    """End a request whose grammar needs much time for each token.

    The second grammar allows the same texts, but is not ambiguous.
    """
    one = constraint_of(vocabulary, f"start: e\n{start}", times)
    # the flow's time is used up, so only the slow grammar can end the loop below
    times.spend("a", STEP_S)
    followed = 0
    while one.error is None and followed < 1000:
        one.advance(ord("a"))
        one.catch_up()
        followed += 1
    assert (followed < 1000) == ends
    if ends:
        assert isinstance(one.error, ConstraintUnsatisfied)
        assert "too long" in one.error.message
    assert one.allowed().any() != ends
