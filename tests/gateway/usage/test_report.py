"""Usage reports from the operator's route and from the tenant's route."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.auth.auth import Authenticator
from gateway.auth.keyring import Keyring
from gateway.errors import BadRequest
from gateway.state.records import Tenant
from gateway.state.redis.link import RedisLink, connect
from gateway.state.redis.store import RedisStore
from gateway.state.sqlite.store import SqliteStore
from gateway.state.store import Store
from gateway.state.usage_records import Counters, UsageRow
from gateway.usage.aggregator import day_of
from gateway.usage.reports import Reports
from gateway.usage.routes import days_of, own_usage_router
from tests.doubles.gateway.redis_server import redis_server
from tests.gateway.admin.office import Office, body, error_of, open_office
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.small_app import client_of, small_app

NOW = 1_767_225_600.0  # 2026-01-01


@pytest.fixture
async def office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    async with open_office(tmp_path_factory.mktemp("office")) as office:
        office.clock.now = NOW
        yield office


async def used(office: Office, tenant: str, key: str, day: str, requests: int) -> None:
    counters = Counters(requests=requests, computed_tokens=7, cached_tokens=5, generated_tokens=2)
    row = UsageRow(tenant_id=tenant, key_id=key, day=day, counters=counters)
    await office.store.add_usage([row], batch=f"{tenant}{key}{day}")


async def generation_request(office: Office, **query: str) -> list[tuple[str, str, int]]:
    answer = await office.operator.get("/admin/usage", params=query)
    assert answer.status_code == 200
    return [(u["day"], u["key_id"], u["requests"]) for u in body(answer)["usage"]]


async def test_the_operator_sees_everybody_and_can_choose(office: Office) -> None:
    await used(office, "tn_a", "key_1", "2026-01-01", 1)
    await used(office, "tn_a", "key_2", "2025-12-31", 2)
    await used(office, "tn_b", "key_3", "2025-06-01", 3)
    recent = [("2025-12-31", "key_2", 2), ("2026-01-01", "key_1", 1)]
    assert await generation_request(office) == recent
    assert await generation_request(office, tenant="tn_a") == recent
    assert await generation_request(office, tenant="tn_b") == []
    assert await generation_request(office, key="key_2") == recent[:1]
    assert await generation_request(office, **{"from": "2025-06-01", "to": "2025-06-30"}) == [
        ("2025-06-01", "key_3", 3)
    ]
    answer = body(await office.operator.get("/admin/usage"))
    assert (answer["first_day"], answer["last_day"]) == ("2025-12-02", "2026-01-01")
    assert answer["usage"][1] == {
        "day": "2026-01-01",
        "tenant_id": "tn_a",
        "key_id": "key_1",
        "requests": 1,
        "computed_tokens": 7,
        "cached_tokens": 5,
        "generated_tokens": 2,
        "engine_ms": None,
        "saved_tokens": 5,
        "saved_ms": None,
        "cache_written_tokens": 0,
        "cache_unread_tokens": 0,
    }


@pytest.mark.parametrize(
    ("query", "accept", "kind"),
    [
        ({}, "*/*", "application/json"),
        ({"format": "json"}, "text/csv", "application/json"),
        ({"format": "csv"}, "*/*", "text/csv"),
        ({}, "text/csv;q=0.9, application/json", "text/csv"),
    ],
)
async def test_it_comes_as_json_or_csv(
    office: Office, query: dict[str, str], accept: str, kind: str
) -> None:
    await used(office, "tn_a", "=1+1", "2026-01-01", 4)
    answer = await office.operator.get("/admin/usage", params=query, headers={"accept": accept})
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["cache-control"] == "no-store"
    if kind == "text/csv":
        [row] = csv.DictReader(io.StringIO(answer.text))
        assert (row["day"], row["requests"], row["saved_tokens"]) == ("2026-01-01", "4", "5")
        assert row["engine_ms"] == ""  # not measured: differs from 0 ms
        assert row["key_id"] == "'=1+1"  # quoted, so that no spreadsheet reads it as a formula


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "20260101"}, "to"),
        ({"to": "2026-02-30"}, "to"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "from"),
        ({"from": "2024-01-01", "to": "2026-01-01"}, "from"),
        ({"format": "xml"}, "format"),
    ],
)
async def test_what_cannot_be_answered_is_refused(
    office: Office, query: dict[str, str], param: str
) -> None:
    answer = await office.operator.get("/admin/usage", params=query)
    assert (error_of(answer)[0], error_of(answer)[2]) == (400, param)


def test_the_earliest_day_has_none_before_it() -> None:
    assert days_of(None, "0001-01-05", NOW) == ("0001-01-01", "0001-01-05")
    assert days_of("2025-01-01", "2026-01-01", NOW)[0] == "2025-01-01"
    with pytest.raises(BadRequest):
        days_of("2025-01-01", "2026-01-02", NOW)


@pytest.fixture(params=["sqlite", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "sqlite":
        sqlite = SqliteStore(tmp_path / "state.sqlite")
        yield sqlite
        await sqlite.close()
        return
    with redis_server(tmp_path) as server:
        redis = RedisStore(RedisLink(connect(server.url), timeout_s=10.0))
        yield redis
        await redis.close()


@dataclass
class Tenancy:
    """A tenant, its key and the key's id."""

    id: str
    key: str
    key_id: str


async def tenant_of(store: Store, keyring: Keyring, name: str) -> Tenancy:
    tenant = Tenant.new(name, created_at=NOW)
    await store.create(tenant)
    issued = await keyring.issue(tenant.id)
    return Tenancy(tenant.id, issued.secret, issued.record.id)


async def test_a_tenant_sees_its_own_and_nobody_else_s(store: Store) -> None:
    keyring, clock = Keyring(store, bytes(32)), ManualClock(NOW)
    acme, rival = [await tenant_of(store, keyring, name) for name in ("acme", "rival")]
    day = day_of(NOW)
    for number, one in enumerate((acme, rival), start=1):
        counters = Counters(requests=number, engine_ms=number * 1.5, saved_ms=number * 10.0)
        row = UsageRow(tenant_id=one.id, key_id=one.key_id, day=day, counters=counters)
        await store.add_usage([row], batch=one.id)
    router = own_usage_router(store, Authenticator(keyring), clock, Reports())
    app = small_app(router)

    async def own(http: httpx.AsyncClient, **query: str) -> list[str]:
        answer = await http.get("/v1/usage", params=query)
        assert answer.status_code == 200
        assert rival.id not in answer.text
        return [row["tenant_id"] for row in body(answer)["usage"]]

    async with client_of(app, acme.key) as http:
        assert await own(http) == [acme.id]
        # the tenant's own route ignores this filter
        assert await own(http, tenant=rival.id) == [acme.id]
        assert await own(http, tenant_id=rival.id) == [acme.id]
        assert await own(http, key=rival.key_id) == []
        csv_text = (await http.get("/v1/usage", params={"format": "csv"})).text
        assert csv_text.count("\r\n") == 2
        assert rival.id not in csv_text
    async with client_of(app, rival.key) as http:
        seen = body(await http.get("/v1/usage"))
        assert [row["requests"] for row in seen["usage"]] == [2]
        assert [row["engine_ms"] for row in seen["usage"]] == [3.0]
        assert [row["saved_ms"] for row in seen["usage"]] == [20.0]
    async with client_of(app, "sk-" + "a" * 43) as http:
        assert (await http.get("/v1/usage")).status_code == 401


@pytest.mark.parametrize(
    ("written", "read", "unread"), [(0, 0, 0), (64, 0, 64), (64, 48, 16), (64, 64, 0), (0, 16, 0)]
)
async def test_what_no_request_has_found_is_unread(
    office: Office, written: int, read: int, unread: int
) -> None:
    """Count tokens as unread until a request finds them.

    A read may be counted before the write, since the reader's request may end first.
    """
    counters = Counters(requests=1, cache_written_tokens=written, cache_read_tokens=read)
    row = UsageRow(tenant_id="tn_a", key_id="key_1", day="2026-01-01", counters=counters)
    await office.store.add_usage([row], batch="1")
    [seen] = body(await office.operator.get("/admin/usage"))["usage"]
    assert (seen["cache_written_tokens"], seen["cache_unread_tokens"]) == (written, unread)
    assert "cache_read_tokens" not in seen
    table = await office.operator.get("/admin/usage", params={"format": "csv"})
    [line] = csv.DictReader(io.StringIO(table.text))
    assert list(line) == list(seen)
    assert [line["cache_written_tokens"], line["cache_unread_tokens"]] == [
        str(written),
        str(unread),
    ]
