"""Who gives a seat to whom, and whose chunks come first."""

from __future__ import annotations

from engine.crowd import fewest_first, who_gives
from engine.sequence import Sequence
from tests.engine.sequences import waiting


def arrivals(*flows: str) -> list[Sequence]:
    """One sequence each, named by flow and place, a second apart."""
    found = []
    for at, flow in enumerate(flows):
        sequence = waiting(f"{flow}{at}", flow=flow)
        sequence.arrived = float(at)
        found.append(sequence)
    return found


def gives(running: list[Sequence], flow: str, spared: list[Sequence] | None = None) -> str | None:
    giver = who_gives(running, flow, spared or [])
    return None if giver is None else giver.request_id


def test_the_last_to_come_of_who_has_most_gives() -> None:
    assert gives(arrivals("a", "b", "a", "b", "a"), "new") == "a4"
    assert gives(list(reversed(arrivals("b", "a", "b", "b", "a"))), "new") == "b3"


def test_a_flow_with_a_seat_gets_no_other() -> None:
    assert gives(arrivals("a", "a", "a", "b"), "b") is None
    assert gives(arrivals("a", "a", "a", "b"), "a") is None


def test_no_flow_gives_up_its_only_seat() -> None:
    assert gives(arrivals("a", "b", "c"), "new") is None
    assert gives([], "new") is None
    assert gives(arrivals("a", "b", "c", "b"), "new") == "b3"


def test_spared_sequences_are_neither_chosen_nor_counted() -> None:
    running = arrivals("a", "a", "b", "b", "a")
    assert gives(running, "new") == "a4"
    assert gives(running, "new", [running[4]]) in ("a1", "b3")
    assert gives(running, "new", [running[4], running[1]]) == "b3"
    assert gives(running, "new", [running[4], running[1], running[3]]) is None


def test_chunks_of_flows_with_few_requests_come_first_and_else_in_order() -> None:
    chunks = arrivals("flood", "one", "flood", "two", "two")
    few = {"flood": 9, "one": 0, "two": 0}
    ordered = fewest_first(chunks, chunks, few.__getitem__)
    assert [one.request_id for one in ordered] == ["one1", "two3", "two4", "flood0", "flood2"]


def test_fewest_first_counts_waiting_and_running_requests() -> None:
    chunks = arrivals("a", "b")
    assert fewest_first(chunks, chunks, {"a": 1, "b": 0}.__getitem__) == chunks[::-1]
    assert fewest_first(chunks, chunks, {"a": 0, "b": 1}.__getitem__) == chunks
    others = [*chunks, *arrivals("a", "a")]
    assert fewest_first(chunks, others, {"a": 0, "b": 1}.__getitem__) == chunks[::-1]


def test_fewest_first_keeps_the_order_of_a_single_flow() -> None:
    chunks = arrivals("a", "a", "a")[::-1]
    assert fewest_first(chunks, chunks, {"a": 3}.__getitem__) == chunks
