"""The choice of an owner, then of its leaf to evict. Positive control: a plain set of leaves."""

from __future__ import annotations

import numpy as np

from prefix_cache.eviction.eviction_policy import Candidates, LeastRecentlyUsed
from prefix_cache.eviction.quota_usage import QuotaUsage
from prefix_cache.eviction.shares import Quota
from prefix_cache.eviction.victim_queue import VictimQueue
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node
from tests.prefix_cache.support.scene import namespace


def leaf(owner: str, last_used: float, blocks: int = 4) -> Node:
    edge = Edge(
        np.zeros(2 * blocks, np.int32), np.arange(blocks, dtype=np.int32), bytes(16 * blocks), 2
    )
    return Node(namespace(owner), edge, owner, start=0, parent=None, last_used=last_used)


class Tier:
    """A tier of a hundred blocks, all of whose leaves can be evicted."""

    def __init__(self, quotas: dict[str, Quota], *leaves: Node) -> None:
        self.quota_usage = QuotaUsage(100)
        for owner, quota in quotas.items():
            self.quota_usage.set_quota(owner, quota)
        for node in leaves:
            self.quota_usage.charge(node.owner, len(node.edge))
        self.victims = VictimQueue(lambda _: LeastRecentlyUsed(), self.quota_usage, leaves)

    def chosen(self, owner: str, wanted: int = 1) -> Node:
        found = self.victims.choose(owner, wanted, wanted)
        assert found is not None
        return found[0]


def test_the_owner_with_most_gives_its_oldest_leaf_though_others_have_older_ones() -> None:
    old, rich_new, rich_old = leaf("poor", 1.0), leaf("rich", 3.0, 9), leaf("rich", 2.0, 9)
    leaves = (old, rich_new, rich_old)
    tier = Tier({"rich": Quota(weight=1.0)}, *leaves)
    assert tier.chosen("poor") is rich_old
    plain = Candidates(LeastRecentlyUsed())
    for node in leaves:
        plain.add(node)
    assert plain.first() is old, "the control: without owners the oldest goes"


def test_an_owner_that_has_given_much_is_not_asked_again() -> None:
    one, other = leaf("one", 1.0, 30), leaf("other", 2.0, 20)
    tier = Tier({"one": Quota(weight=1.0)}, one, other)
    assert tier.chosen("me") is one
    tier.quota_usage.charge("one", -15)
    assert tier.chosen("me") is other
    assert tier.victims.num_unreachable() == 0


def test_an_owner_without_leaves_is_passed_over() -> None:
    held, free = leaf("held", 1.0, 40), leaf("free", 2.0, 10)
    tier = Tier({"held": Quota(weight=1.0)}, held, free)
    assert tier.chosen("me") is held
    tier.victims.discard(held)
    assert tier.chosen("me") is free
    assert held not in tier.victims
    tier.victims.add(held)
    assert tier.chosen("me") is held


def test_floors_are_spared_and_broken_only_where_there_is_no_other_way() -> None:
    kept = leaf("kept", 1.0, 10)
    tier = Tier({"kept": Quota(floor=0.2)}, kept)
    assert tier.victims.spare("me", 4, 4) is None
    assert tier.victims.choose("me", 4, 4) == (kept, 4)
    rich = leaf("rich", 2.0, 50)
    tier = Tier({"kept": Quota(floor=0.2)}, kept, rich)
    assert tier.victims.spare("me", 4, 4) == (rich, 4)


def test_an_owner_over_its_ceiling_makes_room_for_itself() -> None:
    mine, other = leaf("me", 2.0, 10), leaf("other", 1.0, 60)
    tier = Tier({"me": Quota(ceiling=0.1)}, mine, other)
    assert tier.chosen("me") is mine
    assert tier.victims.own("me") is mine
    tier = Tier({"me": Quota(ceiling=0.5)}, mine, other)
    assert tier.chosen("me") is other, "the control: under its ceiling others do"
    assert tier.victims.own("nobody") is None


def test_no_more_is_taken_than_the_first_owner_is_ahead() -> None:
    tier = Tier({"rich": Quota(weight=1.0)}, leaf("rich", 1.0, 30), leaf("next", 2.0, 20))
    assert tier.victims.choose("me", 25, 25) is not None
    found = tier.victims.choose("me", 25, 25)
    assert found is not None
    # ten blocks above the owner's share, and at least one more
    assert (found[0].owner, found[1]) == ("rich", 11)


def test_an_empty_contest_has_nobody() -> None:
    tier = Tier({})
    assert tier.victims.choose("me", 1, 1) is None
    assert (len(tier.victims), list(tier.victims)) == (0, [])
