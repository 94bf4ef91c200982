"""The queue serves flows in turns, orders each flow's requests, and counts debts and newcomers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import QueueFull
from engine.scheduling.fairness.queue import FairQueue, QueueLimits
from engine.sequences.sequence import Sequence
from tests.engine.rigs.sequences import waiting
from tests.examples import examples

QUANTUM = 100


def nothing_cached(sequence: Sequence) -> int:
    return 0


def queue_of(**limits: int) -> FairQueue:
    return FairQueue(QueueLimits(**{"quantum": QUANTUM, **limits}))


def pop(queue: FairQueue, ranks: dict[str, int | None] | None = None) -> str | None:
    """Select one sequence and charge for it; return its id."""
    ranks = ranks or {}
    sequence = queue.select(lambda waiting: ranks.get(waiting.request_id, 0))
    if sequence is None:
        return None
    queue.take(sequence)
    return sequence.request_id


class Load:
    """Flows that always have a waiting request. Each request is served alone and charged at
    once.
    """

    def __init__(self, sizes: dict[str, int], weights: dict[str, float] | None = None) -> None:
        self.queue = queue_of()
        self.sizes = sizes
        self.weights = weights or {}
        self.served: Counter[str] = Counter()
        for flow in sizes:
            self.add(flow)

    def add(self, flow: str) -> None:
        weight = self.weights.get(flow, 1.0)
        self.queue.push(waiting(flow, flow=flow, weight=weight))

    def serve(self) -> str:
        sequence = self.queue.select(nothing_cached)
        assert sequence is not None
        self.add(sequence.flow)  # the next request already waits
        self.queue.take(sequence)
        self.queue.charge(sequence, self.sizes[sequence.flow])
        self.served[sequence.flow] += self.sizes[sequence.flow]
        return sequence.flow


class TestOrderWithinAFlow:
    def test_first_come_first_served(self) -> None:
        queue = queue_of()
        for name in "abc":
            queue.push(waiting(name))
        assert [pop(queue) for _ in range(4)] == ["a", "b", "c", None]

    def test_fewest_tokens_go_first(self) -> None:
        queue = queue_of()
        for name, tokens in (("a", 12), ("b", 4), ("c", 8)):
            queue.push(waiting(name, prompt_len=tokens))
        assert [pop(queue) for _ in range(3)] == ["b", "c", "a"]

    def test_cached_tokens_need_not_be_computed(self) -> None:
        queue = queue_of()
        for name in "abc":
            queue.push(waiting(name))
        assert [pop(queue, {"b": 4, "c": 8}) for _ in range(3)] == ["c", "b", "a"]

    def test_a_sequence_is_passed_over_a_bounded_number_of_times(self) -> None:
        queue = queue_of(patience=8)
        queue.push(waiting("cold"))
        order = []
        for number in range(20):
            queue.push(waiting(f"warm{number}"))
            order.append(pop(queue, {f"warm{number}": 16}))
        assert order.index("cold") == 8

    def test_only_the_oldest_are_compared(self) -> None:
        queue = queue_of(lookahead=2)
        for name in "abc":
            queue.push(waiting(name))
        assert pop(queue, {"c": 99}) == "a"
        assert pop(queue, {"c": 99}) == "c"

    def test_sequences_that_are_not_ready_keep_none_behind_them_waiting(self) -> None:
        queue = queue_of(lookahead=2)
        for name in "abcd":
            queue.push(waiting(name))
        for sequence in list(queue)[:3]:
            sequence.awaits_constraint = True
        assert pop(queue, {"a": None, "b": None, "c": None}) == "d"
        queue.push(waiting("e"))
        for sequence in queue:
            sequence.awaits_constraint = False
        assert pop(queue, {"e": 99}) == "a", "the control: ready sequences count"

    def test_a_sequence_that_may_not_start_is_skipped_and_stays(self) -> None:
        queue = queue_of()
        for name in "ab":
            queue.push(waiting(name))
        assert pop(queue, {"a": None}) == "b"
        assert pop(queue, {"a": None}) is None
        assert pop(queue) == "a"

    def test_a_preempted_sequence_goes_before_all_of_its_flow(self) -> None:
        queue = queue_of()
        for name in "ab":
            queue.push(waiting(name))
        queue.push_front(waiting("younger victim"))
        queue.push_front(waiting("elder victim"))
        order = [pop(queue, {"a": 50, "b": 60}) for _ in range(4)]
        assert order == ["elder victim", "younger victim", "b", "a"]

    def test_select_changes_nothing(self) -> None:
        queue = queue_of()
        for name in "ab":
            queue.push(waiting(name))
        assert queue.select(nothing_cached) is queue.select(nothing_cached)
        assert len(queue) == 2


class TestShorter:
    """Tests of the sequences that may overtake a prompt of their flow that has begun."""

    def begun(self, flow: str = "flow") -> Sequence:
        return waiting("begun", prompt_len=100, flow=flow)

    def test_the_shortest_of_the_flow_that_waits(self) -> None:
        queue = queue_of()
        for name, tokens in (("a", 30), ("b", 20), ("c", 40)):
            queue.push(waiting(name, prompt_len=tokens))
        chosen = queue.shorter(self.begun(), 21, nothing_cached)
        assert chosen is not None
        assert chosen.request_id == "b"
        assert queue.shorter(self.begun(), 20, nothing_cached) is None
        assert len(queue) == 3

    def test_none_once_it_was_passed_over_for_long(self) -> None:
        queue = queue_of(patience=2)
        queue.push(waiting("a"))
        begun = self.begun()
        for passed_over, goes in ((1, True), (2, False)):
            begun.passed_over = passed_over
            assert (queue.shorter(begun, 50, nothing_cached) is not None) is goes

    def test_none_while_a_longer_one_waits_that_was_passed_over_for_long(self) -> None:
        queue = queue_of(patience=2)
        long = waiting("long", prompt_len=60)
        for one in (long, waiting("a")):
            queue.push(one)
        assert queue.shorter(self.begun(), 50, nothing_cached) is not None
        long.passed_over = 2
        assert queue.shorter(self.begun(), 50, nothing_cached) is None

    def test_only_if_it_is_the_flows_turn(self) -> None:
        queue = queue_of()
        ours, theirs = waiting("ours", flow="we"), waiting("theirs", flow="they")
        queue.push(ours)
        assert queue.shorter(self.begun("we"), 50, nothing_cached) is ours  # no other flow waits
        queue.push(theirs)
        assert queue.shorter(self.begun("we"), 50, nothing_cached) is None  # no flow has credit
        assert queue.select(nothing_cached) is ours  # a new round has begun
        assert queue.shorter(self.begun("we"), 50, nothing_cached) is ours
        assert queue.shorter(self.begun("they"), 50, nothing_cached) is None
        queue.charge(ours, 2 * QUANTUM)
        assert queue.shorter(self.begun("we"), 50, nothing_cached) is None
        assert queue.shorter(self.begun("they"), 50, nothing_cached) is theirs

    def test_batch_goes_before_nothing_while_interactive_waits(self) -> None:
        queue = queue_of()
        quiet, begun = waiting("quiet"), self.begun()
        quiet.priority = begun.priority = "batch"
        queue.push(quiet)
        assert queue.shorter(begun, 50, nothing_cached) is quiet
        queue.push(waiting("talk"))
        assert queue.shorter(begun, 50, nothing_cached) is None


class TestBounds:
    def test_a_full_queue_refuses(self) -> None:
        queue = queue_of(capacity=2)
        queue.push(waiting("a"))
        queue.push(waiting("b", flow="other"))
        with pytest.raises(QueueFull) as refusal:
            queue.push(waiting("c"))
        assert refusal.value.retry_after_s
        pop(queue)
        queue.push(waiting("c"))
        assert len(queue) == 2

    def test_a_preempted_sequence_always_finds_its_place(self) -> None:
        queue = queue_of(capacity=1)
        queue.push(waiting("a"))
        queue.push_front(waiting("preempted"))
        assert pop(queue) == "preempted"

    def test_removing_one_that_was_cancelled(self) -> None:
        queue = queue_of()
        sequences = [waiting(name) for name in "abc"]
        for sequence in sequences:
            queue.push(sequence)
        queue.remove(sequences[1])
        assert list(queue) == [sequences[0], sequences[2]]
        assert [pop(queue), pop(queue), pop(queue)] == ["a", "c", None]

    def test_of_idle_flows_that_owe_the_latest_are_remembered(self) -> None:
        queue = queue_of(max_idle_flows=3)
        for number in range(50):
            rival = waiting("rival", flow="rival")
            queue.push(rival)
            debtor = waiting("debtor", flow=f"flow{number}")
            queue.push(debtor)
            queue.take(debtor)
            queue.charge(debtor, 1e6)
            queue.remove(rival)
        assert len(queue) == 0
        for flow in ("flow49", "flow0", "rival"):  # the flow with debt is last
            queue.push(waiting(flow, flow=flow))
        assert [pop(queue), pop(queue), pop(queue)] == ["flow0", "rival", "flow49"]


class TestFairness:
    def test_flows_take_turns_though_one_came_with_many(self) -> None:
        queue = queue_of()
        for number in range(4):
            queue.push(waiting(f"a{number}", flow="a"))
        queue.push(waiting("b", flow="b"))
        assert "b" in [pop(queue), pop(queue)]

    @pytest.mark.parametrize("sizes", [(10, 160), (160, 10), (1, 16), (1000, 16000)])
    def test_a_16_times_larger_request_size_gains_nothing(self, sizes: tuple[int, int]) -> None:
        load = Load({"small": sizes[0], "large": sizes[1]})
        for _ in range(2000):
            load.serve()
            gap = abs(load.served["small"] - load.served["large"])
            assert gap <= QUANTUM + max(sizes)

    @pytest.mark.parametrize("weight", [0.25, 2.0, 5.0])
    def test_service_follows_the_weights(self, weight: float) -> None:
        load = Load({"a": 30, "b": 30}, {"a": weight, "b": 1.0})
        for _ in range(4000):
            load.serve()
        assert load.served["a"] / load.served["b"] == pytest.approx(weight, rel=0.02)

    def test_splitting_requests_within_a_flow_gains_nothing(self) -> None:
        whole = Load({"rival": 50, "me": 64})
        split = Load({"rival": 50, "me": 1})
        for load in (whole, split):
            while sum(load.served.values()) < 50_000:
                load.serve()
        assert split.served["me"] == pytest.approx(whole.served["me"], rel=0.01)

    def test_two_flows_get_twice_of_one(self) -> None:
        """Serve one tenant in two flows (positive control of the test above): it gets twice as
        much.
        """
        load = Load({"rival": 50, "me": 64, "me too": 64})
        while sum(load.served.values()) < 50_000:
            load.serve()
        both = load.served["me"] + load.served["me too"]
        assert both == pytest.approx(2 * load.served["rival"], rel=0.02)

    def test_a_flow_that_returns_has_no_credit(self) -> None:
        load = Load({"busy": 20})
        for _ in range(500):
            load.serve()
        load.sizes["returning"] = 20
        load.add("returning")
        load.served.clear()
        for _ in range(100):
            load.serve()
            assert abs(load.served["busy"] - load.served["returning"]) <= QUANTUM + 20

    def test_a_flow_that_worked_alone_owes_nothing(self) -> None:
        load = Load({"alone": 5000})
        for _ in range(100):
            load.serve()
        load.sizes["newcomer"] = 5000
        load.add("newcomer")
        load.served.clear()
        for _ in range(20):
            load.serve()
        assert load.served["alone"] == load.served["newcomer"]

    def test_debt_survives_being_idle(self) -> None:
        """Keep the debt of an idle flow, which otherwise could send one request at a time to avoid
        it.
        """
        queue = queue_of()
        served: Counter[str] = Counter()
        for flow in ("steady", "one by one"):
            queue.push(waiting(flow, flow=flow))
        for _ in range(2000):
            sequence = queue.select(nothing_cached)
            assert sequence is not None
            queue.take(sequence)  # the flow may now be idle while the request runs
            queue.charge(sequence, 60)
            served[sequence.flow] += 60
            queue.push(waiting(sequence.flow, flow=sequence.flow))
        assert served["steady"] == pytest.approx(served["one by one"], rel=0.02)

    def test_debt_is_paid_off_by_what_others_have_for_nothing(self) -> None:
        """Let a flow with debt wait until other flows have received as much service, and no
        longer.
        """

        def wait_after(alone: int) -> int:
            """Count the other flow's requests that precede the next request of a flow with a debt
            of 1,000.
            """
            queue = queue_of()
            for number in range(2):
                queue.push(waiting(f"first {number}", flow="flood"))
            debtor = waiting("mine", flow="debtor")
            queue.push(debtor)
            queue.take(debtor)
            queue.charge(debtor, 10 * QUANTUM)
            flooding = waiting("run", flow="flood")
            queue.charge(flooding, alone)  # no other flow waits
            queue.push(waiting("mine again", flow="debtor"))
            for number in range(100):
                sequence = queue.select(nothing_cached)
                assert sequence is not None
                queue.take(sequence)
                if sequence.flow == "debtor":
                    return number
                queue.charge(sequence, QUANTUM)
                queue.push(waiting(f"other {number}", flow="flood"))
            raise AssertionError("it never came to its turn")

        assert wait_after(0) == pytest.approx(10, abs=2)
        assert wait_after(5 * QUANTUM) == pytest.approx(5, abs=2)
        assert wait_after(10 * QUANTUM) <= 1
        assert wait_after(1000 * QUANTUM) <= 1

    def test_a_held_flow_does_not_stop_the_others(self) -> None:
        queue = queue_of()
        debtor = waiting("debtor", flow="debtor")
        queue.push(debtor)
        queue.push(waiting("held", flow="held"))
        queue.charge(debtor, 1e9)
        assert pop(queue, {"held": None}) == "debtor"

    @examples(4)
    @given(
        sizes=st.dictionaries(
            st.sampled_from("abcde"), st.integers(1, 2000), min_size=2, max_size=5
        ),
        turns=st.integers(50, 400),
    )
    def test_backlogged_flows_stay_together(self, sizes: dict[str, int], turns: int) -> None:
        load = Load(sizes)
        for _ in range(turns):
            load.serve()
            services = [load.served[flow] for flow in sizes]
            assert max(services) - min(services) <= QUANTUM + max(sizes.values())

    @examples(4)
    @given(
        operations=st.lists(
            st.tuples(
                st.sampled_from(["push", "front", "pop", "remove", "charge"]),
                st.sampled_from("abc"),
                st.integers(0, 500),
                st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
            ),
            max_size=60,
        )
    )
    def test_nothing_is_lost_or_served_twice(
        self, operations: list[tuple[str, str, int, float]]
    ) -> None:
        queue = queue_of()
        inside: list[Sequence] = []
        for number, (what, flow, amount, weight) in enumerate(operations):
            sequence = waiting(str(number), flow=flow, weight=weight)
            if what in ("push", "front"):
                (queue.push if what == "push" else queue.push_front)(sequence)
                inside.append(sequence)
            elif what == "charge":
                queue.charge(sequence, amount)
            elif what == "remove" and inside:
                queue.remove(inside.pop(amount % len(inside)))
            elif what == "pop":
                chosen = queue.select(lambda waiting: int(waiting.request_id) % 7)
                assert (chosen is None) == (not inside)
                if chosen is not None:
                    queue.take(chosen)
                    inside.remove(chosen)
            assert len(queue) == len(inside)
            assert set(queue) == set(inside)


class TestNewcomers:
    def push(self, queue: FairQueue, name: str, flow: str) -> Sequence:
        sequence = waiting(name, flow=flow)
        queue.push(sequence)
        return sequence

    def test_only_flows_that_are_not_present(self) -> None:
        queue = queue_of()
        self.push(queue, "a", "here")
        assert queue.newcomer({"here": 0}, nothing_cached) is None
        new = self.push(queue, "b", "new")
        assert queue.newcomer({"here": 0}, nothing_cached) is new
        # the cache has no room to start the flow's request
        assert queue.newcomer({"here": 0}, lambda one: None) is None

    @pytest.mark.parametrize(("owed", "is_next"), [(0, True), (99, True), (100, False)])
    def test_a_flow_that_owes_a_round_or_more_is_no_newcomer(
        self, owed: int, is_next: bool
    ) -> None:
        queue = queue_of()
        self.push(queue, "waits too", "flood")
        first = self.push(queue, "first", "debtor")
        queue.take(first)
        queue.charge(first, owed)
        again = self.push(queue, "again", "debtor")
        assert queue.newcomer({"flood": 0}, nothing_cached) is (again if is_next else None)

    def test_owing_less_than_those_who_run_is_owing_little(self) -> None:
        queue = queue_of()
        running = self.push(queue, "runs", "flood")
        self.push(queue, "waits", "flood")
        queue.take(running)
        first = self.push(queue, "first", "debtor")
        queue.take(first)
        queue.charge(first, 5 * QUANTUM)
        again = self.push(queue, "again", "debtor")
        assert queue.newcomer({"flood": 0}, nothing_cached) is None
        queue.charge(running, 3 * QUANTUM)
        assert queue.newcomer({"flood": 0}, nothing_cached) is None
        queue.charge(running, 1.5 * QUANTUM)
        assert queue.newcomer({"flood": 0}, nothing_cached) is again

    def test_tokens_that_running_flows_have_begun_count_as_owed(self) -> None:
        """Count the tokens that a running flow has begun as debt.

        Each flow has one request at a time, and pays for all of it before its next turn.
        """
        queue = queue_of()
        self.push(queue, "waits too", "flood")
        first = self.push(queue, "first", "debtor")
        queue.take(first)
        queue.charge(first, 5 * QUANTUM)
        again = self.push(queue, "again", "debtor")
        assert queue.newcomer({"flood": 4 * QUANTUM}, nothing_cached) is None
        assert queue.newcomer({"flood": 4 * QUANTUM + 1}, nothing_cached) is again

    def test_batch_has_no_such_right(self) -> None:
        queue = queue_of()
        sequence = waiting("b", flow="new")
        sequence.priority = "batch"
        queue.push(sequence)
        assert queue.newcomer({}, nothing_cached) is None

    def test_of_newcomers_the_flow_with_fewest_goes_first_then_by_turn(self) -> None:
        queue = queue_of()
        for flow, count in (("flood", 9), ("x", 2), ("y", 2), ("z", 1)):
            for number in range(count):
                self.push(queue, f"{flow}{number}", flow)
        present: dict[str, int] = {}
        taken = []
        while (sequence := queue.newcomer(present, nothing_cached)) is not None:
            queue.take(sequence)
            present[sequence.flow] = 0
            taken.append(sequence.request_id)
        assert taken == ["z0", "x0", "y0", "flood0"]
