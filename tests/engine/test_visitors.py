"""Who counts as a visitor, and what others are left: in seconds and tokens that tests move."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.draft import Draft, StepLimits
from engine.sequence import Sequence
from engine.visitors import AWAY_S, LATELY_S, MAX_LEFT, SHARE, Visitors
from prefix_cache.lease import Lease
from tests.engine.sequences import waiting

WHOLE = 8192
LEAST = 384
LIMITS = StepLimits(WHOLE, 256, beside_visitors=LEAST)
HELD = cast(Lease, "a lease")  # nobody looks into it


def sequence_of(flow: str, arrived: float, tokens: int = 2000) -> Sequence:
    sequence = waiting(f"{flow}@{arrived}", flow=flow, prompt_len=tokens)
    sequence.arrived, sequence.lease = arrived, HELD
    return sequence


class Day:
    """A flood that has been at work since 0, and others who come."""

    def __init__(self, limits: StepLimits = LIMITS) -> None:
        self.visitors = Visitors(limits)
        self.flood = self.come("flood", 0.0)

    def come(self, flow: str, now: float, tokens: int = 2000, *, new: bool = True) -> Sequence:
        sequence = sequence_of(flow, now, tokens)
        self.visitors.came(sequence, is_newcomer=new)
        return sequence

    def go(self, sequence: Sequence, now: float) -> None:
        sequence.lease = None
        self.visitors.went(sequence, now)

    def visit(self, flow: str, came: float, went: float, tokens: int = 2000) -> None:
        self.go(self.come(flow, came, tokens), went)

    def left(self, now: float, *visiting: Sequence, budget: int = WHOLE) -> int:
        """What the others get of a step in which these visitors have all of their tokens."""
        draft = Draft(budget)
        for one in visiting:
            draft.add(one)
        return self.visitors.for_others(draft, now)


class TestWhoVisits:
    def test_a_flow_that_comes_while_others_work_is_a_visitor(self) -> None:
        day = Day()
        guest = day.come("guest", AWAY_S)
        assert day.visitors.present() == [guest]
        assert day.visitors.may_come(AWAY_S)

    def test_a_flow_that_starts_together_with_others_is_none(self) -> None:
        day = Day()
        day.come("guest", AWAY_S / 2)
        assert day.visitors.present() == []
        assert not day.visitors.may_come(AWAY_S / 2)

    def test_a_second_sequence_of_a_flow_begins_no_visit(self) -> None:
        day = Day()
        first = day.come("guest", 1.0)
        day.come("guest", 2.0, new=False)
        assert day.visitors.present() == [first]

    @pytest.mark.parametrize(("away", "visits"), [(AWAY_S * 0.9, False), (AWAY_S * 1.1, True)])
    def test_a_flow_that_returns_at_once_is_no_visitor(self, away: float, visits: bool) -> None:
        visitors = Visitors(LIMITS)
        day = Day()
        day.visitors = visitors
        one, other = day.come("one", 0.0), day.come("other", 0.0)
        del other
        day.go(one, 5.0)
        again = day.come("one", 5.0 + away)
        assert (visitors.present() == [again]) is visits

    def test_nor_who_is_not_new_to_the_queue(self) -> None:
        """Batch work, or who owes much: it waited its turn."""
        day = Day()
        day.come("guest", 1.0, new=False)
        assert day.visitors.present() == []

    def test_until_its_prompt_is_computed_or_it_left(self) -> None:
        day = Day()
        guest, other = day.come("guest", 1.0), day.come("other", 1.0)
        guest.num_computed = guest.prompt_len - 1
        assert day.visitors.present() == [guest, other]
        guest.num_computed = guest.prompt_len
        day.go(other, 2.0)
        assert day.visitors.present() == []

    def test_without_the_setting_there_are_no_visitors(self) -> None:
        day = Day(StepLimits(WHOLE, 256))
        day.visit("guest", 1.0, 2.0)
        guest = day.come("guest", 3.0)
        assert day.visitors.present() == []
        assert not day.visitors.may_come(3.0)
        assert day.left(3.0, guest) == WHOLE - 2000


class TestWhoMayReturn:
    def test_a_visitor_that_left_lately_may_return(self) -> None:
        day = Day()
        day.visit("guest", 1.0, 2.0)
        assert day.visitors.may_come(2.0)
        assert day.visitors.may_come(2.0 + LATELY_S - 0.1)
        assert not day.visitors.may_come(2.0 + LATELY_S)

    def test_a_flow_that_was_no_visitor_may_return_as_one_after_a_while(self) -> None:
        day = Day()
        together = day.come("together", 0.0)
        day.go(together, 1.0)
        assert not day.visitors.may_come(1.0 + AWAY_S / 2)  # it may be taking turns
        assert day.visitors.may_come(1.0 + AWAY_S)

    def test_a_visitor_that_stays_long_is_no_visitor_any_more(self) -> None:
        day = Day()
        day.come("guest", 1.0)
        assert day.visitors.may_come(LATELY_S)
        assert not day.visitors.may_come(1.0 + LATELY_S)

    def test_a_bounded_number_is_remembered(self) -> None:
        day = Day()
        for number in range(MAX_LEFT + 1):
            day.visit(f"guest{number}", 1.0, 2.0)
        again = day.come("guest0", 2.0)  # forgotten: as if it came for the first time
        last = day.come(f"guest{MAX_LEFT}", 2.0)  # it takes turns
        assert again in day.visitors.present()
        assert last not in day.visitors.present()


class TestWhatOthersGet:
    def test_all_while_nobody_comes_and_goes(self) -> None:
        assert Day().left(5.0) == WHOLE

    def test_a_bounded_part_while_somebody_may_return(self) -> None:
        day = Day()
        day.visit("guest", 1.0, 2.0)
        assert day.left(3.0) == LEAST
        assert day.left(3.0, budget=100) == 100
        assert day.left(2.0 + LATELY_S) == WHOLE

    def test_a_share_of_what_the_smallest_visitor_had_to_compute(self) -> None:
        day = Day()
        day.visit("large", 1.0, 2.0, tokens=32_000)
        assert day.left(3.0) == int(SHARE * 32_000)
        day.visit("small", 3.0, 4.0, tokens=8_000)
        assert day.left(5.0) == int(SHARE * 8_000)

    def test_nothing_beside_a_visitors_prompt(self) -> None:
        day = Day()
        guest = day.come("guest", 1.0)
        assert day.left(1.0, guest) == 0
        assert day.left(1.0) > 0  # the control: a step without a row of its

    def test_as_much_as_visitors_once_these_had_a_whole_step(self) -> None:
        day = Day()
        lefts = []
        for number in range(6):
            guest = day.come(f"guest{number}", 1.0 + number)
            draft = Draft(WHOLE)
            draft.add(guest)
            draft.budget = day.visitors.for_others(draft, 1.0 + number)
            lefts.append(draft.budget)
            draft.add(sequence_of("flood", 0.0, 50_000)) if draft.budget else None
            day.visitors.decided(draft, others_wait=True)
            guest.num_computed = guest.prompt_len
        assert lefts == [0, 0, 0, 0, 2000, 2000]

    def test_others_without_work_are_owed_nothing(self) -> None:
        day = Day()
        for number in range(20):
            guest = day.come(f"guest{number}", 1.0 + number)
            draft = Draft(WHOLE)
            draft.add(guest)
            assert day.visitors.for_others(draft, 1.0 + number) == 0
            day.visitors.decided(draft, others_wait=False)
            guest.num_computed = guest.prompt_len
        assert day.visitors.kept_for_others(WHOLE) == 0


@given(st.lists(st.integers(0, 3 * WHOLE), min_size=1, max_size=60))
def test_a_flood_is_never_more_than_two_whole_steps_behind(visits: list[int]) -> None:
    """Whatever comes in each step, all of it visitors, as much as there is."""
    day = Day()
    behind = 0
    for number, tokens in enumerate(visits):
        draft = Draft(WHOLE)
        kept = day.visitors.kept_for_others(WHOLE)
        draft.budget -= kept
        if tokens:
            draft.add(day.come(f"guest{number}", 1.0 + number, tokens))
        for one in day.visitors.present():
            if draft.budget and one not in [row.sequence for row in draft.rows]:
                draft.add(one)
        visiting = WHOLE - kept - draft.budget
        draft.budget += kept
        draft.budget = flood = day.visitors.for_others(draft, 1.0 + number)
        if flood:
            draft.add(sequence_of("flood", 0.0, WHOLE))
        day.visitors.decided(draft, others_wait=True)
        for row in draft.rows:
            row.sequence.num_computed = row.end
        behind = max(behind + visiting - flood, 0)
        assert behind <= 2 * WHOLE
        assert visiting or flood >= LEAST
