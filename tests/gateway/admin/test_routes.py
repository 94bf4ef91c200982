from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.admin.office import Office, open_office
from tests.gateway.support.small_app import client_of

TEXT = "Be brief and kind to all who ask."
ROUTES = {
    ("POST", "/admin/tenants"),
    ("GET", "/admin/tenants"),
    ("GET", "/admin/tenants/{tenant_id}"),
    ("PATCH", "/admin/tenants/{tenant_id}"),
    ("DELETE", "/admin/tenants/{tenant_id}"),
    ("POST", "/admin/tenants/{tenant_id}/disable"),
    ("POST", "/admin/tenants/{tenant_id}/enable"),
    ("POST", "/admin/tenants/{tenant_id}/keys"),
    ("GET", "/admin/tenants/{tenant_id}/keys"),
    ("POST", "/admin/tenants/{tenant_id}/keys/{key_id}/rotate"),
    ("DELETE", "/admin/tenants/{tenant_id}/keys/{key_id}"),
    ("POST", "/admin/tenants/{tenant_id}/adapters"),
    ("GET", "/admin/tenants/{tenant_id}/adapters"),
    ("DELETE", "/admin/tenants/{tenant_id}/adapters/{name}"),
    ("POST", "/admin/groups"),
    ("GET", "/admin/groups"),
    ("GET", "/admin/groups/{group_id}"),
    ("PATCH", "/admin/groups/{group_id}"),
    ("DELETE", "/admin/groups/{group_id}"),
    ("POST", "/admin/prefixes"),
    ("GET", "/admin/prefixes"),
    ("GET", "/admin/prefixes/{prefix_id}"),
    ("DELETE", "/admin/prefixes/{prefix_id}"),
    ("GET", "/admin/engines"),
    ("POST", "/admin/engines"),
    ("DELETE", "/admin/engines/{place}"),
    ("GET", "/admin/audit"),
    ("POST", "/admin/receipts"),
    ("GET", "/admin/receipts/key"),
    ("GET", "/admin/overview"),
    ("PUT", "/admin/isolation/report"),
    ("GET", "/admin/refusals"),
    ("GET", "/admin/requests"),
    ("GET", "/admin/usage"),
    ("GET", "/admin/cache/stats"),
    ("GET", "/admin/cache/evictions"),
    ("GET", "/admin/cache/tree"),
    ("GET", "/admin/cache/prefixes"),
    ("POST", "/admin/cache/flush"),
    ("GET", "/metrics"),
}
UNDESCRIBED = {
    ("GET", "/admin/prefixes/{prefix_id}/export"),
    ("GET", "/admin/prefixes/{prefix_id}/units"),
    ("POST", "/admin/prefixes/{prefix_id}/signature"),
    ("POST", "/admin/imports"),
    ("PUT", "/admin/imports/{import_id}/units"),
    ("POST", "/admin/imports/{import_id}/end"),
    ("DELETE", "/admin/imports/{import_id}"),
}


async def test_the_routes_are_these(office: Office) -> None:
    # The schema has exactly the application's routes, however its routers are nested.
    found = {
        (method.upper(), path)
        for path, methods in office.app.openapi()["paths"].items()
        for method in methods
    }
    assert found == {*ROUTES, ("GET", "/me")}


async def test_only_the_operator_gets_in(office: Office) -> None:
    tenant = await office.tenant()
    issued = await office.key(tenant["id"])
    ids = {
        "tenant_id": tenant["id"],
        "key_id": issued["record"]["id"],
        "group_id": "gr_1",
        "prefix_id": "px_1",
        "place": "/e.sock",
        "import_id": "im_1",
        "name": "support",
    }
    for key in (None, issued["key"], "sk-" + "a" * 43, office.admin_key[:-1]):
        async with client_of(office.app, key) as http:
            for method, path in ROUTES | UNDESCRIBED:
                url = path.format(**ids)
                answer = await http.request(method, url, content=b"{" * 100)
                # the request is refused before its body is read
                assert answer.status_code == 401, url
    # the refused requests changed nothing
    assert (await office.me(issued["key"])).status_code == 200
    assert office.engine.flushes == []


async def test_the_operator_gets_in_everywhere(office: Office) -> None:
    for number, (method, path) in enumerate(sorted(ROUTES | UNDESCRIBED)):
        tenant = await office.tenant(f"tenant-{number}")
        issued = await office.key(tenant["id"])
        named = await office.operator.post("/admin/groups", json={"name": f"group-{number}"})
        published = await office.operator.post(
            "/admin/prefixes", json={"name": "published", "text": TEXT}
        )
        url = path.format(
            tenant_id=tenant["id"],
            key_id=issued["record"]["id"],
            group_id=named.json()["id"],
            prefix_id=published.json()["id"],
            place="/e.sock",
            import_id="im_1",
            name="support",
        )
        named_only = path in ("/admin/tenants", "/admin/groups/{group_id}", "/admin/groups")
        content: dict[str, Any] = (
            {"name": f"new-{number}"} if method in ("POST", "PATCH") and named_only else {}
        )
        if (method, path) == ("POST", "/admin/prefixes"):
            content = {"name": "new", "text": TEXT}
        if (method, path) == ("POST", "/admin/engines"):
            content = {"address": "/new.sock"}
        if path == "/admin/receipts":
            gone = (await office.tenant(f"gone-{number}"))["id"]
            await office.operator.delete(f"/admin/tenants/{gone}")
            content = {"tenant": gone}
        if "adapters" in path:
            content = {"name": "support", "path": "acme/support"}
        if method == "DELETE" and "adapters" in path:
            await office.operator.post(url.removesuffix("/support"), json=content)
        if method == "DELETE" and "engines" in path:
            await office.operator.post("/admin/engines", json={"address": "/e.sock"})
        if path.endswith("/signature"):
            content = {"digest": "00" * 32}
        if (method, path) == ("POST", "/admin/imports"):
            export = await office.operator.get(f"/admin/prefixes/{published.json()['id']}/export")
            content = {k: v for k, v in export.json().items() if k not in ("id", "name", "tokens")}
        if path.endswith("/end"):
            content = {"name": "published", "source": {"text": TEXT}}
        if path == "/admin/isolation/report":
            answer = await office.operator.put(
                url, json={"verdict": "passed", "samples": 9, "report": "# Fine"}
            )
            assert answer.status_code == 200
            continue
        answer = await office.operator.request(method, url, json=content)
        assert answer.status_code in (200, 201), url


async def test_the_operator_s_key_opens_no_tenant_s_route(office: Office) -> None:
    assert (await office.me(office.admin_key)).status_code == 401


async def test_metrics_join_the_gateway_s_and_the_engine_s_numbers(office: Office) -> None:
    office.metrics.refused("/v1/models", "invalid_api_key")
    answer = await office.operator.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"ratoon_requests_refused", "ratoon_pool_blocks", "ratoon_engine_up"} <= families
    assert "ratoon_engine_up 1.0" in answer.text


async def test_metrics_outlive_the_engine(office: Office) -> None:
    office.engine.connected = False
    answer = await office.operator.get("/metrics")
    assert answer.status_code == 200
    assert "ratoon_engine_up 0.0" in answer.text


async def test_on_a_bind_of_its_own_metrics_need_no_key_and_the_rest_does(tmp_path: Path) -> None:
    async with (
        open_office(tmp_path, open_metrics=True) as office,
        client_of(office.app) as stranger,
    ):
        assert (await stranger.get("/metrics")).status_code == 200
        assert (await stranger.get("/admin/tenants")).status_code == 401
        assert (await stranger.get("/admin/cache/stats")).status_code == 401


async def test_two_tenants_live_side_by_side(office: Office) -> None:
    """Create two tenants with keys, and delete one of them; the other is not affected."""
    one, two = await office.tenant("one"), await office.tenant("two", weight=2.0)
    key_one, key_two = await office.key(one["id"]), await office.key(two["id"])
    assert (await office.me(key_one["key"])).json()["id"] == one["id"]
    assert (await office.me(key_two["key"])).json() == {
        "id": two["id"],
        "weight": 2.0,
    }
    rotated = await office.operator.post(
        f"/admin/tenants/{two['id']}/keys/{key_two['record']['id']}/rotate"
    )
    assert (await office.me(key_two["key"])).status_code == 401
    await office.operator.delete(f"/admin/tenants/{one['id']}")
    assert (await office.me(key_one["key"])).status_code == 401
    assert (await office.me(rotated.json()["key"])).json()["id"] == two["id"]
    assert office.engine.flushes == [one["id"]] * 2, "recorded before and after the deletion"
