"""A flow that arrives while others work is a newcomer until its first prompt is computed.

Tests set the clock.
"""

from __future__ import annotations

from typing import cast

import pytest

from engine.scheduling.fairness.arrivals import AWAY_S, LATELY_S, MAX_LEFT, Arrivals
from engine.sequences.sequence import Sequence
from prefix_cache.leases.lease import Lease
from tests.engine.rigs.sequences import waiting

HELD = cast(Lease, "a lease")  # a lease that no test reads


class Day:
    """A flow that has flooded the engine since time 0, and other flows that arrive."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.flood = self.come("flood", 0.0)

    def come(self, flow: str, now: float, tokens: int = 2000) -> Sequence:
        sequence = waiting(f"{flow}@{now}", flow=flow, prompt_len=tokens)
        sequence.arrived, sequence.lease = now, HELD
        self.arrivals.came(sequence, is_newcomer=self.arrivals.is_newcomer(sequence))
        return sequence

    def go(self, sequence: Sequence, now: float) -> None:
        sequence.lease = None
        self.arrivals.went(sequence, now)

    def visit(self, flow: str, came: float, went: float, tokens: int = 2000) -> None:
        self.go(self.come(flow, came, tokens), went)

    def expected(self, now: float, *waiting: str) -> int | None:
        return self.arrivals.expected(now, lambda flow: flow in waiting)


class TestNewcomers:
    def test_a_flow_that_comes_while_others_work_is_one(self) -> None:
        day = Day()
        guest = day.come("guest", AWAY_S)
        assert day.arrivals.newcomers() == [guest]
        assert day.expected(AWAY_S) == 2000

    def test_flows_that_start_together_are_none(self) -> None:
        day = Day()
        day.come("guest", AWAY_S / 2)
        assert day.arrivals.newcomers() == []
        assert day.expected(AWAY_S / 2) is None

    def test_a_second_sequence_of_a_flow_is_none(self) -> None:
        day = Day()
        first = day.come("guest", 1.0)
        day.come("guest", 2.0)
        assert day.arrivals.newcomers() == [first]

    @pytest.mark.parametrize(("away", "is_newcomer"), [(AWAY_S * 0.9, False), (AWAY_S * 1.1, True)])
    def test_a_flow_that_returns_at_once_is_none(self, away: float, is_newcomer: bool) -> None:
        day = Day()
        one, other = day.come("one", 0.0), day.come("other", 0.0)
        del other
        day.go(one, 5.0)
        again = day.come("one", 5.0 + away)
        assert (day.arrivals.newcomers() == [again]) is is_newcomer

    def test_one_that_was_not_let_in_first_is_none(self) -> None:
        """Count no batch work and no flow with debt as a newcomer, since these wait for their
        turn.
        """
        day = Day()
        guest = waiting("guest", flow="guest")
        guest.arrived, guest.lease = 1.0, HELD
        day.arrivals.came(guest, is_newcomer=False)
        assert day.arrivals.newcomers() == []

    def test_it_is_one_until_its_prompt_is_computed_or_it_left(self) -> None:
        day = Day()
        guest, other = day.come("guest", 1.0), day.come("other", 1.0)
        guest.num_computed = guest.prompt_len - 1
        assert day.arrivals.newcomers() == [guest, other]
        guest.num_computed = guest.prompt_len
        day.go(other, 2.0)
        assert day.arrivals.newcomers() == []

    def test_the_one_with_the_fewest_tokens_is_first(self) -> None:
        day = Day()
        guests = [day.come(f"guest{tokens}", 1.0, tokens) for tokens in (900, 100, 500)]
        assert day.arrivals.newcomers() == [guests[1], guests[2], guests[0]]


class TestWhoMayReturn:
    def test_one_that_left_lately(self) -> None:
        day = Day()
        day.visit("guest", 1.0, 2.0)
        assert day.expected(2.0) == 2000
        assert day.expected(2.0 + LATELY_S - 0.1) == 2000
        assert day.expected(2.0 + LATELY_S) is None

    def test_not_one_that_did_and_was_no_newcomer_before(self) -> None:
        day = Day()
        day.visit("together", 0.0, 2.0)
        assert day.expected(3.0) == 2000
        assert day.expected(3.0, "together") is None
        day.visit("guest", 3.0, 4.0, tokens=3000)
        assert day.expected(5.0, "together", "guest") == 3000

    def test_a_flow_that_started_with_others_may_return_after_a_while(self) -> None:
        day = Day()
        together = day.come("together", 0.0)
        day.go(together, 1.0)
        assert day.expected(1.0 + AWAY_S / 2) is None  # the flow may be alternating with another
        assert day.expected(1.0 + AWAY_S) == 2000

    def test_one_that_stays_long_is_always_there(self) -> None:
        day = Day()
        day.come("guest", 1.0)
        assert day.expected(LATELY_S) == 2000
        assert day.expected(1.0 + LATELY_S) is None

    def test_the_fewest_tokens_count(self) -> None:
        day = Day()
        day.visit("large", 1.0, 2.0, tokens=32_000)
        day.visit("small", 3.0, 4.0, tokens=8_000)
        assert day.expected(5.0) == 8_000

    def test_a_bounded_number_is_remembered(self) -> None:
        day = Day()
        for number in range(MAX_LEFT + 1):
            day.visit(f"guest{number}", 1.0, 2.0)
        again = day.come("guest0", 2.0)  # the flow was forgotten, so it counts as new
        last = day.come(f"guest{MAX_LEFT}", 2.0)  # a flow that alternates with others
        assert again in day.arrivals.newcomers()
        assert last not in day.arrivals.newcomers()
