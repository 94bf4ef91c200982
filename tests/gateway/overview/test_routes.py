from __future__ import annotations

from engine.link.stats.flow_stats import EvictionStats
from engine.link.stats.tier_stats import StateStats
from engine.link.view_messages import OwnerView, QueueUsage, SequenceView, TierUsage
from gateway.http.request_head import RunningRequest
from gateway.overview.routes import EVICTIONS, OWNERS
from gateway.telemetry.refusals import Refusal
from tests.gateway.admin.office import Office, body
from tests.gateway.support.operated_engine import some_overview
from tests.gateway.support.small_app import client_of


async def test_the_overview_names_tenants(office: Office) -> None:
    acme = (await office.tenant("acme"))["id"]
    office.engine.seen = some_overview(
        tiers=[
            TierUsage(
                tier="device",
                total=100,
                used=40,
                owners=[OwnerView(acme, 30, 5, 50), OwnerView("published", 10, 0, 100)],
                num_owners=2,
            )
        ],
        queue=[QueueUsage(acme, 2, 1)],
        evictions=[
            EvictionStats(
                age_s=3.0,
                of_flow=acme,
                for_flow="gone",
                tier="device",
                reason="no_room",
                blocks=4,
            )
        ],
        states=StateStats(total=60, checkpoints=31, cut_tokens=160),
    )
    told = body(await office.operator.get("/admin/overview"))
    assert told["now"] == office.clock()
    assert told["interval_s"] == 5.0
    assert told["samples"] == []
    assert told["tiers"] == [
        {
            "tier": "device",
            "total_blocks": 100,
            "used_blocks": 40,
            "owners": [
                {"tenant": acme, "name": "acme", "blocks": 30, "floor": 5, "ceiling": 50},
                {
                    "tenant": "published",
                    "name": "(published prefixes)",
                    "blocks": 10,
                    "floor": 0,
                    "ceiling": 100,
                },
            ],
            "num_owners": 2,
        }
    ]
    assert (told["states"]["checkpoints"], told["states"]["cut_tokens"]) == (31, 160)
    assert told["queue"] == [{"tenant": acme, "name": "acme", "waiting": 2, "running": 1}]
    assert told["evictions"] == [
        {
            "at": office.clock() - 3.0,
            "by": {"tenant": "gone", "name": None},
            "of": {"tenant": acme, "name": "acme"},
            "blocks": 4,
            "tier": "device",
            "reason": "no_room",
        }
    ]
    assert [one["process"] for one in told["health"]] == ["engine", "gateway"]
    assert office.engine.overview_asks[-1] == (OWNERS, EVICTIONS)


async def test_samples_are_given_since_a_time(office: Office) -> None:
    for _ in range(3):
        office.clock.advance(5)
        await office.watched.history.look()
    samples = body(await office.operator.get("/admin/overview"))["samples"]
    assert len(samples) == 3
    newer = await office.operator.get("/admin/overview", params={"since": samples[0]["t"]})
    assert body(newer)["samples"] == samples[1:]


async def test_without_an_engine_the_overview_still_has_the_health(office: Office) -> None:
    office.engine.connected = False
    told = body(await office.operator.get("/admin/overview"))
    assert told["tiers"] == []
    assert told["health"][0] == {
        "process": "engine",
        "ok": False,
        "since": None,
        "detail": "no engine is connected",
        "fault": "is down",
    }


async def test_requests_are_listed_with_their_tenants(office: Office) -> None:
    acme = (await office.tenant("acme"))["id"]
    office.engine.alive = [SequenceView("r-0", acme, "prefill", 9.0, 100, 64, 0)]
    told = body(await office.operator.get("/admin/requests"))
    assert told["total"] == 1
    assert told["requests"] == [
        {
            "request_id": "r",
            "tenant": acme,
            "name": "acme",
            "route": None,
            "model": "tiny",
            "state": "prefill",
            "age_s": 9.0,
            "prompt_tokens": 100,
            "cached_tokens": 64,
            "generated_tokens": 0,
        }
    ]


async def test_without_an_engine_own_requests_are_listed(office: Office) -> None:
    office.engine.connected = False
    own = RunningRequest(None)
    own.tenant_id, own.route = "tn_x", "/v1/completions"
    office.watched.known.under_way.add(b"digest", own)
    (told,) = body(await office.operator.get("/admin/requests"))["requests"]
    assert (told["request_id"], told["state"]) == (own.id, "gateway")
    own.at_end.close()
    assert body(await office.operator.get("/admin/requests"))["requests"] == []


async def test_refusals_are_listed_with_names_and_counts(office: Office) -> None:
    acme = (await office.tenant("acme"))["id"]
    refusal = Refusal(
        at=office.clock(),
        request_id="r",
        client_id="mine",
        tenant=acme,
        route="/v1/completions",
        status=429,
        code="rate_limit_exceeded",
        message="too many requests",
    )
    office.watched.known.kept.add(refusal)
    told = body(await office.operator.get("/admin/refusals"))
    assert told["by_code"] == {"rate_limit_exceeded": 1}
    (one,) = told["refusals"]
    assert (one["name"], one["message"], one["client_id"]) == ("acme", "too many requests", "mine")


async def test_tenants_may_see_none_of_it(office: Office) -> None:
    key = (await office.key((await office.tenant())["id"]))["key"]
    async with client_of(office.app, key) as tenant:
        for path in ("/admin/overview", "/admin/requests", "/admin/refusals"):
            assert (await tenant.get(path)).status_code == 401
            assert (await office.operator.get(path)).status_code == 200


async def test_the_last_isolation_report_is_in_the_overview(office: Office) -> None:
    assert body(await office.operator.get("/admin/overview"))["isolation"] is None
    for verdict in ("leaks", "passed"):
        sent = {"verdict": verdict, "samples": 2000, "report": "# Isolation of tenants"}
        await office.operator.put("/admin/isolation/report", json=sent)
    told = body(await office.operator.get("/admin/overview"))["isolation"]
    assert told == {**sent, "at": office.clock()}
    (entry, *_) = body(await office.operator.get("/admin/audit"))["entries"]
    assert (entry["action"], entry["target"]) == ("isolation.report", "passed")
