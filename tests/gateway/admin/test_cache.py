from __future__ import annotations

import msgspec
import numpy as np
import pytest

from engine.link.stats.engine_stats import SentinelStats
from engine.link.stats.flow_stats import EvictionStats, FlowShares, FlowStats, ShareStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import (
    DirectionStats,
    DiskStats,
    LowerTierStats,
    StateStats,
    TierStats,
    TierTokens,
)
from gateway.admin.audit import AuditTrail
from gateway.admin.cache.cache_routes import cache_router
from gateway.config import Bounds
from gateway.errors import Unavailable
from gateway.prompts.tokens.splicing import START
from gateway.prompts.verbatim_turns.said import Said
from gateway.prompts.verbatim_turns.turn_memory import GeneratedTurn, TurnMemory
from gateway.replicas.flushes import FlushReader
from gateway.sharing.flushing import Flushing
from gateway.state.records import Tenant
from gateway.state.store import R
from tests.gateway.admin.office import Office, body, error_of
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.operated_engine import OperatedEngine, some_stats
from tests.gateway.support.small_app import client_of, small_app

A_TURN = GeneratedTurn(START, b"", np.zeros(4, np.int32), Said("", "", (), ()), None)


async def test_stats_tell_everything_in_one_object(office: Office) -> None:
    answer = await office.operator.get("/admin/cache/stats")
    assert answer.status_code == 200
    assert body(answer) == {
        "engine_id": "engine-1",
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "fingerprint": "000102030405060708090a0b0c0d0e0f",
        "uptime_s": 12.5,
        "steps": 600,
        "preemptions": 5,
        "generated_tokens": 700,
        "windows": {
            "1m": {
                "queried_tokens": 0,
                "hit_tokens": 0,
                "fetched_tokens": 0,
                "computed_tokens": 0,
                "hit_rate": None,
            },
            "10m": {
                "queried_tokens": 100,
                "hit_tokens": 75,
                "fetched_tokens": 0,
                "computed_tokens": 25,
                "hit_rate": 0.75,
            },
            "all": {
                "queried_tokens": 1000,
                "hit_tokens": 250,
                "fetched_tokens": 0,
                "computed_tokens": 750,
                "hit_rate": 0.25,
            },
        },
        "pool": {
            "block_size": 16,
            "blocks": {"total": 100, "free": 60, "used": 40, "evictable": 30, "leased": 10},
            "tokens": {"total": 1600, "free": 960, "used": 640, "evictable": 480, "leased": 160},
        },
        "tree": {"nodes": 21, "depth": 6},
        "queue": {"running": 3, "waiting": 4},
        "tenants": [],
        "floors_scale": {"device": 1.0},
        "drafts": {},
        "states": msgspec.to_builtins(StateStats()),
        "sentinel": msgspec.to_builtins(SentinelStats()),
        "gaps": msgspec.to_builtins(GapStats()),
        "replicas": [],
        "router_answers": None,
        "tiers": {
            "block_bytes": 0,
            "hit_tokens": {"device": 0, "host": 0, "disk": 0},
            "lower": {},
            "moves": [],
            "evictions": {},
            "loading": 0,
            "failed_loads": 0,
            "prefill_tokens_per_s": {},
            "disk": None,
        },
    }


async def test_lower_tiers_are_reported_in_blocks_and_bytes(office: Office) -> None:
    disk = DiskStats(
        state="up", bytes=9, records=8, lost=7, refused=6, late=5, quarantines=4, failures=3
    )
    office.engine.counters = some_stats(
        tiers=TierStats(
            block_bytes=1000,
            found=TierTokens(device=1, host=2, disk=3),
            lower={"host": LowerTierStats(total=40, used=30, loads_chosen=20, loads_refused=10)},
            ways=[
                DirectionStats(
                    source="host",
                    target="device",
                    blocks=2_000_000,
                    failed=1,
                    seconds=0.5,
                    under_way=3,
                )
            ],
            evictions={"host": {"no_room": 5}},
            prefill={256: 1000.0},
            disk=disk,
        )
    )
    tiers = body(await office.operator.get("/admin/cache/stats"))["tiers"]
    assert tiers["hit_tokens"] == {"device": 1, "host": 2, "disk": 3}
    assert tiers["lower"]["host"] == {
        "total_blocks": 40,
        "used_blocks": 30,
        "total_bytes": 40_000,
        "used_bytes": 30_000,
        "loads_chosen": 20,
        "loads_refused": 10,
    }
    assert tiers["moves"][0]["bytes"] == 2_000_000_000
    assert tiers["moves"][0]["gb_per_s"] == 4.0
    assert tiers["evictions"] == {"host": {"no_room": 5}}
    assert tiers["prefill_tokens_per_s"] == {"256": 1000.0}
    assert tiers["disk"]["quarantines"] == 4


async def test_each_tenant_s_numbers_stand_under_its_id_and_name(office: Office) -> None:
    one, two = await office.tenant("one"), await office.tenant("two")
    office.engine.counters = some_stats(
        flows={
            one["id"]: FlowStats(
                requests=5,
                prompt_tokens=100,
                cached_tokens=80,
                generated_tokens=9,
                blocks_held=3,
                evictions_caused=1,
                evictions_suffered=2,
                written_blocks=8,
                unread_blocks=5,
                retained_blocks=2,
            ),
            two["id"]: FlowStats(),
            "tn_gone": FlowStats(blocks_held=1),
        }
    )
    tenants = body(await office.operator.get("/admin/cache/stats"))["tenants"]
    by_id = {tenant["id"]: tenant for tenant in tenants}
    assert by_id[one["id"]] == {
        "id": one["id"],
        "name": "one",
        "requests": 5,
        "prompt_tokens": 100,
        "hit_tokens": 80,
        "computed_tokens": 20,
        "generated_tokens": 9,
        "hit_rate": 0.8,
        "blocks_held": 3,
        "tokens_held": 48,
        "evictions_caused": 1,
        "evictions_suffered": 2,
        "written_blocks": 8,
        "unread_blocks": 5,
        "retained_tokens": 32,
        "tiers": {},
        "caused": {},
        "suffered": {},
    }
    assert by_id[two["id"]]["name"] == "two"
    assert by_id[two["id"]]["hit_rate"] is None
    assert by_id["tn_gone"]["name"] is None
    assert len(tenants) == 3


class AwayStore(MemoryStore):
    """A store that cannot be reached."""

    async def every(self, kind: type[R]) -> list[R]:
        raise Unavailable("away")


@pytest.mark.parametrize(("kind", "name"), [(MemoryStore, "acme"), (AwayStore, None)])
async def test_without_the_state_stats_have_no_tenant_names(
    kind: type[MemoryStore], name: str | None
) -> None:
    store, engine, clock = kind(), OperatedEngine(), ManualClock()
    tenant = Tenant.new("acme", created_at=0.0)
    await store.create(tenant)
    turns = TurnMemory(Bounds(), clock)
    engine.counters = some_stats(flows={tenant.id: FlowStats(requests=5)})
    flushing, audit = Flushing(store, engine, clock, FlushReader()), AuditTrail(store, clock)
    router = cache_router(store, engine, flushing, audit, [turns], clock)
    async with client_of(small_app(router)) as operator:
        answer = await operator.get("/admin/cache/stats")
    [told] = body(answer)["tenants"]
    assert (told["id"], told["name"], told["requests"]) == (tenant.id, name, 5)


async def test_without_an_engine_there_are_no_stats(office: Office) -> None:
    office.engine.connected = False
    assert error_of(await office.operator.get("/admin/cache/stats"))[:2] == (503, "overloaded")
    office.engine.connected = True
    assert (await office.operator.get("/admin/cache/stats")).status_code == 200


async def test_flush_forgets_one_tenant_or_all(office: Office) -> None:
    tenant = await office.tenant()
    path = "/admin/cache/flush"
    answers = [
        await office.operator.post(path, json={"tenant": tenant["id"]}),
        await office.operator.post(path),
        await office.operator.post(path, json={}),
        await office.operator.post(path, json={"tenant": None}),
    ]
    assert [body(answer) for answer in answers] == [{"flushed_blocks": 7, "awaited": []}] * 4
    assert office.engine.flushes == [tenant["id"], None, None, None]


async def test_what_is_away_forgets_when_it_is_back(office: Office) -> None:
    tenant = await office.tenant()
    office.engine.connected = False
    answer = await office.operator.post("/admin/cache/flush", json={"tenant": tenant["id"]})
    assert body(answer) == {"flushed_blocks": None, "awaited": ["0"]}
    assert list(office.engine.recorded.values()) == [tenant["id"]], "of which it is told then"
    assert (await office.store.flushes())[0].tenant_id == tenant["id"]


async def test_a_flush_forgets_the_turns_of_one_tenant_or_all(office: Office) -> None:
    for name in ("one", "two", "three"):
        office.turns.add(name, b"key", A_TURN)
    one = await office.tenant("one")
    office.turns.add(one["id"], b"key", A_TURN)
    await office.operator.post("/admin/cache/flush", json={"tenant": one["id"]})
    assert office.turns.tenants() == {"one", "two", "three"}
    await office.operator.post("/admin/cache/flush")
    assert office.turns.tenants() == set()


async def test_a_flush_that_names_no_tenant_of_ours_forgets_nothing(office: Office) -> None:
    tenant = await office.tenant("acme")
    path = "/admin/cache/flush"
    for content, status in (
        ({"tenant": "tn_none"}, 404),
        ({"tenant": ""}, 404),
        ({"tenant": "acme"}, 404),  # a tenant's name in place of its id
        ({"tenat": tenant["id"]}, 400),
        ({"tenant": [tenant["id"]]}, 400),
        ([], 400),
    ):
        answer = await office.operator.post(path, json=content)
        assert answer.status_code == status
    assert office.engine.flushes == []


async def test_how_a_tenant_stands_and_whose_blocks_went_for_whom(office: Office) -> None:
    one = await office.tenant("one")
    share = ShareStats(held=3, floor=2, ceiling=9, fair=4.5)
    office.engine.counters = some_stats(
        flows={one["id"]: FlowStats()},
        shares={one["id"]: FlowShares(tiers={"host": share}, caused={"host": {"no_room": 7}})},
        evictions=[
            EvictionStats(
                age_s=60.0,
                of_flow="tn_x",
                for_flow=one["id"],
                tier="host",
                reason="no_room",
                blocks=7,
            )
        ],
    )
    stats = body(await office.operator.get("/admin/cache/stats"))
    [tenant] = stats["tenants"]
    assert tenant["tiers"] == {"host": {"held": 3, "floor": 2, "ceiling": 9, "fair": 4.5}}
    assert (tenant["caused"], tenant["suffered"]) == ({"host": {"no_room": 7}}, {})
    assert stats["floors_scale"] == {"device": 1.0}
    [eviction] = body(await office.operator.get("/admin/cache/evictions"))["evictions"]
    assert eviction.pop("time") == office.clock() - 60.0
    assert eviction == {
        "of_tenant": "tn_x",
        "for_tenant": one["id"],
        "tier": "host",
        "reason": "no_room",
        "blocks": 7,
    }


async def test_without_an_engine_there_are_no_recent_evictions(office: Office) -> None:
    office.engine.connected = False
    assert error_of(await office.operator.get("/admin/cache/evictions"))[0] == 503


async def test_a_quota_is_set_kept_and_bounded(office: Office) -> None:
    made = body(
        await office.operator.post(
            "/admin/tenants", json={"name": "q", "cache": {"floor": 0.2, "ceiling": 0.5}}
        )
    )
    assert made["cache"] == {"floor": 0.2, "ceiling": 0.5}
    url = f"/admin/tenants/{made['id']}"
    changed = await office.operator.patch(url, json={"cache": {"ceiling": 0.25}})
    assert body(changed)["cache"] == {"ceiling": 0.25}
    for wrong in ({"floor": 0.5, "ceiling": 0.4}, {"floor": -0.1}, {"ceiling": 1.5}, {"x": 1}):
        assert (await office.operator.patch(url, json={"cache": wrong})).status_code == 400
    assert body(await office.operator.get(url))["cache"] == {"ceiling": 0.25}
