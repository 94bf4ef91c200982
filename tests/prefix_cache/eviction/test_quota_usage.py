"""The owner that gives up blocks first is the one worked out by hand."""

from __future__ import annotations

import pytest

from prefix_cache.eviction.quota_usage import FINENESS, Class, QuotaUsage
from prefix_cache.eviction.shares import PUBLISHED, Quota

TOTAL = 100


def quota_usage(held: dict[str, int], quotas: dict[str, Quota] | None = None) -> QuotaUsage:
    """Make the usage of a tier of a hundred blocks, in which owners have `held` blocks each."""
    made = QuotaUsage(TOTAL)
    for owner, quota in (quotas or {}).items():
        made.set_quota(owner, quota)
    for owner, blocks in held.items():
        made.charge(owner, blocks)
    return made


def order(made: QuotaUsage, wants: str, more: int = 1) -> list[str]:
    """Return the owners in the order in which they give up blocks if `wants` needs `more`
    blocks.
    """
    others = [made.rank(owner) for owner in made.held if owner != wants]
    return [rank.owner for rank in sorted([*others, made.rank(wants, more)])]


QUOTAS = {
    "over": Quota(ceiling=0.2),
    "above": Quota(floor=0.1),
    "below": Quota(floor=0.3),
    "me": Quota(floor=0.1, ceiling=0.2),
}


def test_owners_give_up_blocks_class_by_class() -> None:
    held = {"over": 25, "above": 20, "below": 20, PUBLISHED: 5}
    made = quota_usage({**held, "me": 20}, QUOTAS)
    assert order(made, "me") == [PUBLISHED, "me", "over", "above", "below"]
    made = quota_usage({**held, "me": 5}, QUOTAS)
    assert order(made, "me") == [PUBLISHED, "over", "above", "me", "below"]


def test_above_their_floors_the_owner_with_most_for_its_weight_is_first() -> None:
    held, heavy = {"light": 20, "heavy": 30, "me": 1}, {"heavy": Quota(weight=2.0)}
    assert order(quota_usage(held, heavy), "me") == ["light", "heavy", "me"]
    assert order(quota_usage(held), "me") == ["heavy", "light", "me"], (
        "the control: without weights"
    )


def test_of_two_alike_the_owner_that_wants_more_is_first() -> None:
    assert order(quota_usage({"a": 10, "me": 9}), "me", more=1) == ["me", "a"]
    assert order(quota_usage({"a": 10, "me": 8}), "me", more=1) == ["a", "me"]


def test_blocks_that_are_about_to_leave_are_not_counted() -> None:
    made = quota_usage({"a": 30, "b": 20, "me": 1})
    assert order(made, "me")[0] == "a"
    made.leaving("a", 15)
    assert (made.level("a"), made.is_leaving("a"), made.is_leaving("b")) == (15, True, False)
    assert order(made, "me")[0] == "b"
    made.leaving("a", -15)
    assert not made.is_leaving("a")


def test_nobody_is_brought_below_its_floor_or_its_ceiling_at_once() -> None:
    made = quota_usage({"over": 25, "above": 20, "me": 1}, QUOTAS)
    over, above, me = made.rank("over"), made.rank("above"), made.rank("me", 1)
    assert (over.sort, above.sort) == (Class.OVER, Class.ABOVE)
    assert made.allowance(over, above, 1) == 5
    assert made.allowance(above, me, 1) == 10
    assert made.allowance(me, None, 1) == TOTAL, "of its own it may lose everything"


def test_an_owner_gives_up_as_much_as_it_is_ahead_of_the_next() -> None:
    made = QuotaUsage(10 * FINENESS)
    made.charge("most", 700)
    made.charge("next", 600)
    assert made.allowance(made.rank("most"), made.rank("next"), 1) == 100 + 10
    assert made.allowance(made.rank("most"), None, 1) == 700, "the control: nobody is next"


def test_floors_that_do_not_fit_together_are_scaled_down() -> None:
    made = quota_usage({}, {"a": Quota(floor=0.8), "b": Quota(floor=0.4)})
    assert (made.floor("a"), made.floor("b")) == (66, 33)
    made.charge(PUBLISHED, 40)  # floors divide what is left of the tier
    assert (made.floor("a"), made.floor("b")) == (40, 20)
    made.charge(PUBLISHED, -40)
    made.set_quota("b", Quota(floor=0.1))
    assert (made.floor("a"), made.floor("b")) == (80, 10)


def test_without_a_quota_nobody_is_over() -> None:
    made = quota_usage({"a": 90, "b": 50}, {"b": Quota(ceiling=0.4)})
    assert (made.excess("a"), made.excess("b"), made.excess("b", more=5)) == (0, 10, 15)
    assert made.excess(PUBLISHED, more=200) == 0


@pytest.mark.parametrize("working", [0, 20])
def test_a_partition_is_floor_and_ceiling(working: int) -> None:
    made = quota_usage({"a": 30, "b": 60, PUBLISHED: 10})
    made.partition({"a": 0.5, "b": 0.5}, working)
    part = (TOTAL - working - 10) // 2
    assert made.floor("a") == made.ceiling("a") == part
    assert made.excess("b") == 60 - part
    assert "b" in made.exceeding
    assert "a" not in made.exceeding
    assert made.shares() == {"a": part, "b": part}
    assert [made.rank(owner).sort for owner in "ab"] == [Class.BELOW, Class.OVER]


def test_fair_shares_fill_what_others_leave() -> None:
    made = quota_usage({"small": 10, "a": 60, "b": 30}, {"small": Quota(ceiling=0.1)})
    assert made.shares() == pytest.approx({"small": 10, "a": 45, "b": 45})
