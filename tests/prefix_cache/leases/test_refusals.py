"""Refused leases are retried from time to time, by key, and the number of keys is bounded."""

from __future__ import annotations

from prefix_cache.leases.refusals import RETRY, Refusals


def refuse(refusals: Refusals[str], key: str, times: int) -> None:
    for _ in range(times):
        refusals.add(key)


def test_every_so_often_a_key_is_due_whatever_becomes_of_others() -> None:
    refusals = Refusals[str]()
    refuse(refusals, "a", RETRY - 1)
    assert refusals.is_due("a")
    assert not refusals.is_due("b")
    refusals.add("a")
    assert not refusals.is_due("a")


def test_of_too_many_keys_the_one_refused_longest_ago_starts_over() -> None:
    refusals = Refusals[str](most=2)
    for key in ("a", "b"):
        refuse(refusals, key, RETRY - 2)
    for key in ("a", "b"):
        refusals.add(key)
    assert refusals.is_due("a"), "the control: two are kept"
    assert refusals.is_due("b")
    refusals.add("c")
    assert not refusals.is_due("a")
    assert refusals.is_due("b")
