"""Quotas keep floors and ceilings, share the rest by weight, and neither waste nor refuse."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from prefix_cache.eviction.shares import PUBLISHED, Quota
from prefix_cache.tiers.eviction_log import Reason
from storage.move import Tier
from tests.prefix_cache.support.market import (
    Market,
    Request,
    Sizes,
    conversations,
    flood,
    mixed,
    prompt,
)
from tests.prefix_cache.support.scene import path

SMALL = Sizes(64, 96, 128)
SHAPES = [Sizes(64), Sizes(64, 96), Sizes(64, 0, 128), SMALL]
LAST_COPY = frozenset(Reason) - {Reason.COPIED, Reason.DOUBLE}


def primed(sizes: Sizes, quotas: dict[str, Quota], requests: list[Request]) -> Market:
    market = Market(sizes, quotas)
    market.serve_all(requests)
    return market


class TestFloors:
    @pytest.mark.parametrize("sizes", SHAPES)
    def test_blocks_below_a_floor_survive_any_flood(self, sizes: Sizes) -> None:
        mine = flood("mine", 4)
        for quota, survives in ((Quota(floor=0.5), True), (Quota(), False)):
            quotas = {"mine": quota} | {f"flood {n}": Quota(weight=9.0) for n in range(3)}
            market = primed(sizes, quotas, mine * 3)
            for n in range(3):
                market.serve_all(flood(f"flood {n}", 60, begin=100 * n))
                market.cache.check_invariants()
            assert (market.held("mine") == 32) == survives
            assert market.serve_all(mine) == [7] * 4 or not survives

    @pytest.mark.parametrize("seed", range(3))
    def test_no_floor_is_broken_for_another_while_anyone_is_over_theirs(self, seed: int) -> None:
        random = Random(seed)
        quotas = {
            "a": Quota(floor=0.3),
            "b": Quota(floor=0.2, weight=3.0),
            "c": Quota(floor=0.1, ceiling=0.4),
            "d": Quota(),
        }
        market = Market(Sizes(80, 60, 90), quotas)
        parts = [conversations(random, o, 80, topics=40) for o in quotas]
        for request in mixed(random, parts):
            before, counted_in_parent = (
                market.cache.quotas.shares(),
                dict(market.cache.eviction_log.evicted),
            )
            market.serve(request)
            after = market.cache.quotas.shares()
            gone: Counter[tuple[str, Tier, bool]] = Counter()
            for one, blocks in market.cache.eviction_log.evicted.items():
                if one.of_owner != request.owner:
                    is_last = one.reason in LAST_COPY
                    gone[one.of_owner, one.tier, is_last] += blocks - counted_in_parent.get(one, 0)
            for owner in quotas.keys() - {request.owner}:
                now = after[owner][Tier.DEVICE]
                assert now.held >= min(now.floor, before[owner][Tier.DEVICE].held)
                for tier in (Tier.HOST, Tier.DISK):
                    # copies that are also in a higher tier may be evicted freely
                    if gone[owner, tier, True]:
                        now = after[owner][tier]
                        assert now.held + gone[owner, tier, False] >= now.floor

    def test_floors_that_do_not_fit_are_worth_less_and_it_is_said(self) -> None:
        market = Market(Sizes(80), {"a": Quota(floor=1.0), "b": Quota(floor=0.6)})
        assert market.cache.quotas.floors_scale == {Tier.DEVICE: 0.625}
        for begin in (0, 100):
            market.serve_all(flood("a", 20, begin=begin) + flood("b", 20, begin=begin))
        shares = market.cache.quotas.shares()
        assert [shares[o][Tier.DEVICE].floor for o in "ab"] == [50, 30]
        assert (market.held("a"), market.held("b")) == (50, 30)
        market.cache.quotas.set("a", Quota(floor=0.4))
        assert market.cache.quotas.floors_scale == {Tier.DEVICE: 1.0}

    @pytest.mark.parametrize("gone", [False, True])
    def test_a_forgotten_owner_loses_its_floor(self, gone: bool) -> None:
        market = primed(Sizes(64), {"a": Quota(floor=0.75), "b": Quota()}, flood("a", 8))
        if gone:
            market.cache.quotas.forget("a")
        market.cache.quotas.forget("nobody")
        market.serve_all(flood("b", 20, begin=20, length=16))
        assert market.held("a") == (32 if gone else 48)  # half of the tier may be used by anybody
        shares = market.cache.quotas.shares()
        assert shares["a"][Tier.DEVICE].floor == (0 if gone else 48)
        assert "nobody" not in shares

    def test_published_blocks_have_no_quota_and_scale_the_floors_down(self) -> None:
        market = Market(Sizes(80), {"a": Quota(floor=0.5), "b": Quota(floor=0.5)})
        pinned = market.begin(Request(PUBLISHED, prompt(7, length=40)))
        assert market.cache.quotas.floors_scale == {Tier.DEVICE: 0.5}
        market.serve_all(flood("a", 20) + flood("b", 20, begin=50))
        assert (market.held("a"), market.held("b"), market.held(PUBLISHED)) == (20, 20, 40)
        market.cache.release(pinned, now=market.now)
        market.serve_all(flood("a", 20, begin=80))
        # Published blocks that are no longer pinned are evicted first.
        assert (market.held("a"), market.held(PUBLISHED)) == (60, 0)
        with pytest.raises(ValueError, match="no quota"):
            market.cache.quotas.set(PUBLISHED, Quota())


class TestCeilings:
    @pytest.mark.parametrize("sizes", SHAPES)
    def test_no_owner_keeps_more_than_its_ceiling_even_where_there_is_room(
        self, sizes: Sizes
    ) -> None:
        random = Random(1)
        market = Market(sizes, {"capped": Quota(ceiling=0.25)})
        for request in conversations(random, "capped", 100, topics=30):
            market.serve(request)
            shares = market.cache.quotas.shares()["capped"]
            assert {t: s for t, s in shares.items() if s.held > s.ceiling} == {}
        assert market.held("capped") >= 16 - 12
        assert market.found["capped"] > 0

    def test_an_owner_at_its_ceiling_evicts_only_its_own_blocks(self) -> None:
        market = Market(Sizes(64), {"capped": Quota(ceiling=0.5), "other": Quota()})
        market.serve_all(flood("other", 4))
        market.serve_all(flood("capped", 40, begin=10))
        assert (market.held("capped"), market.held("other")) == (32, 32)
        use = market.cache.capacity.owners()
        assert use["other"].evictions_suffered == 0
        assert use["capped"].evictions_caused == use["capped"].evictions_suffered == 36 * 8
        assert market.cache.eviction_log.entries() == []

    @pytest.mark.parametrize("sizes", SHAPES)
    def test_a_request_beyond_every_quota_is_served(self, sizes: Sizes) -> None:
        quotas = {"none": Quota(ceiling=0.0), "floored": Quota(floor=1.0)}
        market = Market(sizes, quotas)
        market.serve_all(flood("floored", 8))
        for request in flood("none", 5, begin=50, length=60):
            market.serve(request)
            assert market.held("none") == 0
        market.cache.check_invariants()

    def test_a_ceiling_that_is_lowered_holds_at_once_but_for_what_runs(self) -> None:
        market = Market(Sizes(64), {"a": Quota()})
        lease = market.begin(flood("a", 1)[0])
        market.serve_all(flood("a", 7, begin=5))
        assert market.held("a") == 64
        market.cache.quotas.set("a", Quota(ceiling=0.0))
        assert market.held("a") == 8
        market.cache.release(lease, now=market.now)
        assert market.held("a") == 0

    @pytest.mark.parametrize("sizes", SHAPES)
    def test_blocks_over_a_ceiling_go_when_the_last_reader_has_ended(self, sizes: Sizes) -> None:
        """Evict blocks over a ceiling after the last reader has ended.

        By then nobody requests anything, so the next plan has to evict them.
        """
        [asked] = flood("a", 1)
        market = primed(sizes, {"a": Quota(), "b": Quota()}, [asked])
        reading = market.cache.acquire(path("a"), asked.prompt, owner="b", now=9.0)
        assert reading is not None
        market.cache.quotas.set("a", Quota(ceiling=0.0))
        market.complete()
        assert market.held("a") == 7
        market.cache.release(reading, now=10.0)
        market.complete()
        assert market.held("a") == 0


class TestBetween:
    def test_others_may_use_what_an_owner_does_not(self) -> None:
        quotas = {"idle": Quota(floor=0.5, weight=10.0), "busy": Quota()}
        market = primed(Sizes(64), quotas, flood("busy", 8))
        assert market.held("busy") == 64
        assert market.cache.capacity.owners()["busy"].evictions_suffered == 0
        assert market.serve_all(flood("busy", 8)) == [7] * 8

    def test_an_owner_that_returns_gets_its_share_again(self) -> None:
        market = primed(Sizes(64), {"a": Quota(), "b": Quota(weight=3.0)}, flood("a", 8))
        market.serve_all(flood("b", 20, begin=20))
        assert (market.held("a"), market.held("b")) == (16, 48)
        market.serve_all(flood("a", 20, begin=50))
        assert (market.held("a"), market.held("b")) == (16, 48)

    @pytest.mark.parametrize("seed", range(8))
    def test_backlogged_owners_hold_what_the_model_says(self, seed: int) -> None:
        random = Random(seed)
        owners = [f"owner {n}" for n in range(random.randint(2, 6))]
        floors = sorted(random.random() for _ in owners[1:])
        widths = [b - a for a, b in zip([0.0, *floors], [*floors, 1.0], strict=True)]
        quotas = {
            owner: Quota(
                floor := width * random.choice((0.0, 0.5, 1.0)),
                max(floor, random.choice((0.2, 0.5, 1.0, 1.0))),
                random.choice((0.5, 1.0, 2.0, 5.0)),
            )
            for owner, width in zip(owners, widths, strict=True)
        }
        market = Market(Sizes(240), quotas)
        turns = [flood(owner, 120, length=2) for owner in owners]
        market.serve_all(mixed(random, turns))
        shares = market.cache.quotas.shares()
        for owner in owners:
            share = shares[owner][Tier.DEVICE]
            assert abs(share.held - share.fair) <= 4, (owner, shares)
        room = min(sum(shares[o][Tier.DEVICE].ceiling for o in owners), 240)
        assert sum(market.held(owner) for owner in owners) >= room - 4

    def test_without_quotas_the_policy_alone_decides(self) -> None:
        market = Market(Sizes(64))
        market.serve_all(flood("a", 4) + flood("b", 20, begin=20))
        assert (market.held("a"), market.held("b")) == (0, 64)


class TestBooks:
    def test_the_ledger_says_whose_for_whom_from_where_why_and_when(self) -> None:
        market = primed(Sizes(16, 8), {"a": Quota(), "b": Quota()}, flood("a", 2))
        market.serve_all(flood("b", 1, begin=10))
        [entry] = market.cache.eviction_log.entries()
        eviction = entry.eviction
        assert (entry.when, entry.blocks) == (3.0, 8)
        assert (eviction.of_owner, eviction.for_owner) == ("a", "b")
        assert (eviction.tier, eviction.reason.value) == (Tier.DEVICE, "copied")

    @pytest.mark.parametrize("sizes", SHAPES)
    def test_reported_shares_and_evictions_add_up(self, sizes: Sizes) -> None:
        random = Random(3)
        market = Market(sizes, {"a": Quota(0.2), "b": Quota(0.0, 0.5), "c": Quota(weight=4.0)})
        parts = [conversations(random, o, 70, topics=30) for o in "abc"]
        market.serve_all(mixed(random, parts))
        evictions = market.cache.quotas.evictions()
        counted_in_parent = market.cache.eviction_log.evicted
        named = sum(blocks for one, blocks in counted_in_parent.items() if one.for_owner)
        assert sum(sum(e.caused.values()) for e in evictions.values()) == named
        assert sum(sum(e.suffered.values()) for e in evictions.values()) == sum(
            counted_in_parent.values()
        )
        shares = market.cache.quotas.shares()
        used = {t: use.used for t, use in market.cache.capacity.lower_tiers().items()}
        used[Tier.DEVICE] = market.cache.capacity.pool().used
        for tier, blocks in used.items():
            assert sum(share[tier].held for share in shares.values()) == blocks
            assert (
                sum(share[tier].fair for share in shares.values())
                <= market_total(sizes, tier) + 1e-6
            )


def market_total(sizes: Sizes, tier: Tier) -> int:
    return {Tier.DEVICE: sizes.device, Tier.HOST: sizes.host, Tier.DISK: sizes.disk}[tier]


class TestQuota:
    @pytest.mark.parametrize(
        ("floor", "ceiling", "weight"),
        [
            (-0.01, 1.0, 1.0),
            (0.6, 0.5, 1.0),
            (0.0, 1.01, 1.0),
            (0.0, 1.0, 0.0),
            (0.0, 1.0, -1.0),
            (0.0, 1.0, math.inf),
            (0.0, 1.0, math.nan),
            (math.nan, 1.0, 1.0),
        ],
    )
    def test_an_impossible_quota_is_refused(
        self, floor: float, ceiling: float, weight: float
    ) -> None:
        with pytest.raises(ValueError):
            Quota(floor, ceiling, weight)

    @pytest.mark.parametrize(("floor", "ceiling"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
    def test_bounds_are_fine(self, floor: float, ceiling: float) -> None:
        assert Quota(floor, ceiling).weight == 1.0
