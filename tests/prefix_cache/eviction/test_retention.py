"""A retained leaf is evicted after other leaves, until its time since the last use has passed."""

from __future__ import annotations

from prefix_cache.eviction.eviction_policy import Candidates, LeastRecentlyUsed
from prefix_cache.eviction.retention import Retention
from prefix_cache.tree.node import Node
from tests.prefix_cache.eviction.test_eviction_policy import drain, leaf


def candidates(retention: Retention, nodes: list[Node]) -> Candidates:
    made = Candidates(LeastRecentlyUsed(), retention)
    for node in nodes:
        made.add(node)
    return made


def test_what_is_retained_goes_last_and_of_that_first_what_lapses_first() -> None:
    retention, nodes = Retention(), [leaf(float(at)) for at in range(4)]
    retention.now = 10.0
    retention.retain(nodes[0], 60.0)
    retention.retain(nodes[1], 30.0)
    assert drain(candidates(retention, nodes)) == [nodes[2], nodes[3], nodes[1], nodes[0]]


def test_when_its_time_has_passed_it_has_its_place_again() -> None:
    retention, nodes = Retention(), [leaf(float(at)) for at in range(3)]
    retention.now = 10.0
    retention.retain(nodes[0], 30.0)
    made = candidates(retention, nodes)
    retention.now = 39.9
    assert made.first() is nodes[1]
    retention.now = 40.0
    assert made.first() is nodes[0]
    assert made.outdated() == []
    assert made.num_unreachable() == 0
    assert drain(made) == nodes


def test_each_use_begins_the_time_anew_and_none_after_it_has_passed() -> None:
    retention, node = Retention(), leaf(0.0)
    retention.now = 10.0
    retention.retain(node, 30.0)
    retention.now = 39.0
    retention.used(node)
    retention.now = 68.0
    assert retention.keeps(node)
    retention.now = 69.0
    retention.used(node)
    assert not retention.keeps(node)


def test_a_shorter_time_takes_nothing_from_a_longer_one() -> None:
    retention, node = Retention(), leaf(0.0)
    retention.retain(node, 3600.0)
    retention.now = 10.0
    retention.retain(node, 300.0)
    retention.now = 3600.0 + 9.0
    assert retention.keeps(node)
    retention.now += 1.0
    assert not retention.keeps(node)
    retention.retain(node, 300.0)  # when the longer time has passed, the shorter one applies
    retention.now += 300.0
    assert not retention.keeps(node)


def test_what_is_pushed_down_displaces_no_retained_block_unless_it_is_retained_longer() -> None:
    retention, old, new = Retention(), leaf(1.0), leaf(2.0)
    policy = LeastRecentlyUsed()
    made = candidates(retention, [old])
    assert made.admits(new, old)
    assert not made.admits(old, new), "the control"
    retention.retain(old, 300.0)
    assert not made.admits(new, old)
    assert made.admits(old, new)
    retention.retain(new, 3600.0)
    assert made.admits(new, old)
    assert retention.may_displace(new, old, policy.admits)
