"""The balance between interactive and batch work, alone and within the queue."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.errors import QueueFull
from engine.link.messages import Priority
from engine.scheduling.fairness.priority_classes import PriorityClasses
from engine.scheduling.fairness.queue import FairQueue, QueueLimits
from engine.sequences.sequence import Sequence
from tests.engine.rigs.sequences import waiting


def both_waiting(share: float = 0.2, most_due: float = 100.0) -> PriorityClasses:
    classes = PriorityClasses(share, most_due=most_due)
    classes.entered("interactive")
    classes.entered("batch")
    return classes


def test_interactive_goes_first_until_batch_is_due() -> None:
    classes = both_waiting()
    assert classes.order()[0] == "interactive"
    classes.charge("interactive", 40)
    assert classes.order()[0] == "batch"
    classes.charge("batch", 10)
    assert classes.order()[0] == "interactive"


@pytest.mark.parametrize("share", [0.05, 1 / 8, 0.5])
def test_batch_gets_its_share_of_the_work(share: float) -> None:
    classes, done = both_waiting(share, 1000.0), {"interactive": 0, "batch": 0}
    for _ in range(5000):
        first = classes.order()[0]
        cost = 7 if first == "interactive" else 30
        classes.charge(first, cost)
        done[first] += cost
    assert done["batch"] / sum(done.values()) == pytest.approx(share, rel=0.02)


def test_batch_that_was_idle_is_due_nothing() -> None:
    classes = PriorityClasses(0.2, most_due=100.0)
    classes.entered("interactive")
    classes.charge("interactive", 1e6)
    classes.entered("batch")
    assert classes.order()[0] == "interactive"
    classes.charge("interactive", 1e6)
    classes.left("batch")
    classes.entered("batch")
    assert classes.order()[0] == "interactive"


def test_the_work_due_to_batch_is_bounded() -> None:
    classes = both_waiting(most_due=100.0)
    classes.charge("interactive", 1e9)
    classes.charge("batch", 100)
    assert classes.order()[0] == "interactive"


def test_batch_work_that_nobody_waited_for_is_no_debt() -> None:
    classes = PriorityClasses(0.2, most_due=100.0)
    classes.entered("batch")
    classes.charge("batch", 1e6)
    classes.entered("interactive")
    classes.charge("interactive", 1)
    assert classes.order()[0] == "batch"


def sequence(name: str, priority: Priority, *, flow: str = "flow", at: float = 0.0) -> Sequence:
    made = waiting(name, flow=flow)
    made.priority = priority
    made.arrived = at
    return made


def serve(queue: FairQueue, cost: float = 10.0) -> Sequence:
    chosen = queue.select(lambda _: 0)
    assert chosen is not None
    queue.take(chosen)
    queue.charge(chosen, cost)
    return chosen


def test_interactive_goes_before_batch_of_any_flow() -> None:
    queue = FairQueue(QueueLimits())
    queue.push(sequence("b1", "batch", flow="early"))
    queue.push(sequence("i1", "interactive", flow="late"))
    assert [serve(queue, 0).request_id for _ in range(2)] == ["i1", "b1"]


@pytest.mark.parametrize("flows", [1, 5])
def test_batch_is_not_starved_and_not_more_than_its_share(flows: int) -> None:
    queue = FairQueue(QueueLimits(batch_share=1 / 8, quantum=50))
    served: Counter[str] = Counter()
    longest_wait = since_batch = 0
    for number in range(flows):
        queue.push(sequence(f"i{number}", "interactive", flow=f"f{number}"))
    queue.push(sequence("b", "batch", flow="batch"))
    for number in range(4000):
        chosen = queue.select(lambda _: 0)
        assert chosen is not None
        queue.push(sequence(f"n{number}", chosen.priority, flow=chosen.flow))
        queue.take(chosen)
        queue.charge(chosen, 10)
        served[chosen.priority] += 10
        since_batch = 0 if chosen.priority == "batch" else since_batch + 1
        longest_wait = max(longest_wait, since_batch)
    assert served["batch"] / served.total() == pytest.approx(1 / 8, rel=0.05)
    assert longest_wait <= 8


def test_a_flow_that_lowers_some_of_its_requests_gains_nothing() -> None:
    queue = FairQueue(QueueLimits(quantum=50))
    served: Counter[str] = Counter()
    for name, flow, priority in (
        ("a", "plain", "interactive"),
        ("b", "both", "interactive"),
        ("c", "both", "batch"),
    ):
        queue.push(sequence(name, "batch" if priority == "batch" else "interactive", flow=flow))
    for number in range(6000):
        chosen = queue.select(lambda _: 0)
        assert chosen is not None
        queue.push(sequence(f"n{number}", chosen.priority, flow=chosen.flow))
        queue.take(chosen)
        queue.charge(chosen, 10)
        served[chosen.flow] += 10
    assert served["both"] / served.total() == pytest.approx(0.5, rel=0.02)


def test_a_flood_leaves_room_for_others() -> None:
    queue = FairQueue(QueueLimits(capacity=100))
    for number in range(75):
        queue.push(sequence(f"flood{number}", "interactive", flow="flood"))
    with pytest.raises(QueueFull):
        queue.push(sequence("flood75", "interactive", flow="flood"))
    for flow in range(10):
        queue.push(sequence(f"other{flow}", "interactive", flow=f"other{flow}"))
    with pytest.raises(QueueFull):
        queue.push(sequence("flood again", "interactive", flow="flood"))


def test_several_floods_leave_room_too() -> None:
    queue = FairQueue(QueueLimits(capacity=100))
    for number in range(400):
        try:
            queue.push(sequence(f"s{number}", "interactive", flow=f"flood{number % 4}"))
        except QueueFull:
            continue
    queue.push(sequence("anew", "interactive", flow="anew"))
    assert len(queue) < 100


def test_a_refusal_says_after_how_long_a_place_should_be_free() -> None:
    queue = FairQueue(QueueLimits(capacity=4))
    now = 0.0
    for number in range(20):
        now += 3.0
        try:
            queue.push(sequence(f"s{number}", "interactive", at=now))
        except QueueFull as refusal:
            told = refusal.retry_after_s
        if number % 2:
            serve(queue)
    assert told is not None
    assert 4.0 <= told <= 8.0  # one request starts every six seconds


def test_a_preempted_batch_sequence_comes_back_before_batch_and_behind_interactive() -> None:
    queue = FairQueue(QueueLimits())
    queue.push(sequence("b1", "batch"))
    queue.push_front(sequence("preempted", "batch"))
    queue.push(sequence("i", "interactive"))
    assert [serve(queue, 0).request_id for _ in range(3)] == ["i", "preempted", "b1"]
