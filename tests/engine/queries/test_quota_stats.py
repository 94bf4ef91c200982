"""Quotas that arrive with requests are kept by the engine's cache and reported in its stats."""

from __future__ import annotations

import pytest

from engine.link.query_messages import Flush, StatsQuery, StatsReply
from prefix_cache.eviction.shares import PUBLISHED
from tests.engine.rigs.rig import CLIENT, Rig, generate


def one_flow_floods_another(floor: float) -> Rig:
    rig = Rig(num_blocks=16, max_batch_tokens=64)
    rig.submit(generate("kept", range(24), flow="small", cache_quota=(floor, 1.0)))
    rig.run()
    for n in range(6):
        flood = generate(f"flood {n}", range(24 + n, 56 + n), flow=f"flood {n % 3}")
        rig.submit(flood)
        rig.run()
        rig.expect_output(flood)
    return rig


def test_a_floor_outlasts_a_flood_and_without_one_it_does_not() -> None:
    found = {}
    for floor in (0.5, 0.1):
        rig = one_flow_floods_another(floor)
        rig.submit(generate("again", range(24), flow="small", cache_quota=(floor, 1.0)))
        rig.run()
        found[floor] = rig.core.stats().flows["small"].cached_tokens
    assert found[0.5] >= 20
    assert found[0.1] < found[0.5]


def test_stats_tell_how_everyone_stands_and_who_pushed_out_whom() -> None:
    rig = one_flow_floods_another(0.25)
    stats = rig.core.stats(evictions=10)
    small = stats.shares["small"]
    assert (small.tiers["device"].floor, small.tiers["device"].ceiling) == (4, 16)
    assert small.tiers["device"].held >= 4
    assert small.tiers["device"].fair == 4
    assert sum(small.suffered["device"].values()) > 0
    assert stats.floors_scale == {"device": 1.0}
    newest = stats.evictions[0]
    assert newest.of_flow != newest.for_flow
    assert newest.tier == "device"
    assert newest.age_s > 0
    lost = sum(
        one.blocks for one in rig.core.stats(evictions=99).evictions if one.of_flow == "small"
    )
    assert lost == stats.flows["small"].evictions_suffered > 0
    assert rig.core.stats().evictions == []
    rig.link.say(StatsQuery(query_id="q", evictions=1))
    rig.step()
    reply = rig.link.sent[CLIENT][-1]
    assert isinstance(reply, StatsReply)
    assert len(reply.stats.evictions) == 1


def test_a_request_larger_than_its_ceiling_runs_and_leaves_no_more_than_that() -> None:
    rig = Rig(num_blocks=16, max_batch_tokens=64)
    request = generate("big", range(40), flow="capped", cache_quota=(0.0, 0.25))
    rig.submit(request)
    rig.run()
    rig.expect_output(request)
    assert rig.core.stats().shares["capped"].tiers["device"].held == 4
    nothing = generate("none", range(40), flow="capped", cache_quota=(0.0, 0.0))
    rig.submit(nothing)
    rig.run()
    rig.expect_output(nothing)
    assert rig.core.stats().shares["capped"].tiers["device"].held == 0


@pytest.mark.parametrize("wrong", [(0.5, 0.4), (-0.1, 1.0), (0.0, 1.1), (float("nan"), 1.0)])
def test_a_quota_that_cannot_be_is_refused(wrong: tuple[float, float]) -> None:
    rig = Rig()
    rig.submit(generate("a", range(8), cache_quota=wrong))
    rig.submit(generate("b", range(8), cache_quota=(0.0, 1.0)))
    rig.run()
    assert rig.failed("a").code == "invalid_request"
    assert rig.core.stats().flows["flow"].requests == 1


def test_published_prefixes_are_outside_of_quotas() -> None:
    rig = Rig()
    rig.submit(generate("warm", range(16), flow=PUBLISHED, cache_quota=(0.5, 0.5)))
    rig.submit(generate("other", range(16), flow="x"))
    rig.run()
    shares = rig.core.stats().shares
    assert not shares[PUBLISHED].tiers if PUBLISHED in shares else True
    assert shares["x"].tiers["device"].fair < 64


def test_a_flushed_flow_loses_its_floor() -> None:
    rig = Rig(num_blocks=16)
    for name in ("x", "y"):
        rig.submit(generate(name, range(8), flow=name, cache_quota=(1.0, 1.0)))
    rig.run()
    assert rig.core.stats().floors_scale == {"device": 0.5}
    rig.link.say(Flush(query_id="1", flow="x"))
    rig.run()
    assert rig.core.stats().floors_scale == {"device": 1.0}
