"""`ratoon tenants` and `ratoon cache` change and list records, or print the server's message.

The gateway is real, with a fake engine.
"""

import re
from itertools import count

import httpx
import pytest

from tests.cli.console import Console, Ratoon
from tests.doubles.gateway.served import Served

_numbers = count()


@pytest.fixture
def tenant(ratoon: Ratoon) -> str:
    """Create a tenant; return its name."""
    name = f"acme-{next(_numbers)}"
    assert ratoon(f"tenants create {name}").status == 0
    return name


def status_with(gateway: Served, key: str) -> int:
    """Return the status of the server's answer to a request with this key."""
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{gateway.url}/v1/models", headers=headers).status_code


def record(ratoon: Ratoon, tenant: str) -> dict[str, object]:
    (found,) = (t for t in ratoon("tenants list --json").json if t["name"] == tenant)
    return dict(found)


def test_a_created_tenant_is_listed(ratoon: Ratoon) -> None:
    printed = ratoon("tenants create globex --weight 2.5")
    assert printed.status == 0
    assert re.fullmatch(r"Created tenant globex \(\S+\)\.\n", printed.out)
    listed = record(ratoon, "globex")
    assert listed["weight"] == 2.5
    table = ratoon("tenants list").out
    row = next(line for line in table.splitlines() if "globex" in line)
    assert "enabled" in row
    assert "2.5" in row
    assert str(listed["id"]) in row


def test_json_is_the_servers_own_record(ratoon: Ratoon) -> None:
    created = ratoon("tenants create initech --json").json
    assert created["name"] == "initech"
    assert created == record(ratoon, "initech")


def test_a_taken_name_is_the_servers_message_and_status_1(ratoon: Ratoon, tenant: str) -> None:
    printed = ratoon(f"tenants create {tenant}")
    assert printed.status == 1
    assert printed.out == ""
    assert re.fullmatch(r"ratoon: .+ \(409\)\n", printed.err)


def test_an_issued_key_is_alone_on_standard_output_and_works(
    ratoon: Ratoon, tenant: str, gateway: Served
) -> None:
    printed = ratoon(f"tenants keys create {tenant}")
    assert printed.status == 0
    key = printed.out.removesuffix("\n")
    assert re.fullmatch(r"sk-\S+", key)
    assert "not be shown again" in printed.err
    assert key not in printed.err
    assert status_with(gateway, key) == 200
    assert status_with(gateway, key[:-1] + ("A" if key[-1] != "A" else "B")) == 401


def test_keys_are_listed_without_being_shown(ratoon: Ratoon, tenant: str) -> None:
    key = ratoon(f"tenants keys create {tenant} --expires-in 30d").out.strip()
    assert ratoon(f"tenants keys create {tenant}").status == 0
    listed = ratoon(f"tenants keys list {tenant} --json").json
    first, second = listed
    assert first["expires_at"] - first["created_at"] == pytest.approx(30 * 86400, abs=60)
    assert second["expires_at"] is None
    table = ratoon(f"tenants keys list {tenant}").out
    assert table.count("\tlive\t") == 2
    assert first["id"] in table
    assert key not in table


def test_a_revoked_key_stops_working(ratoon: Ratoon, tenant: str, gateway: Served) -> None:
    issued = ratoon(f"tenants keys create {tenant} --json").json
    assert status_with(gateway, issued["key"]) == 200
    key_id = issued["record"]["id"]
    assert ratoon(f"tenants keys revoke {tenant} {key_id}").out == f"Revoked {key_id}.\n"
    assert status_with(gateway, issued["key"]) == 401
    assert "\trevoked\t" in ratoon(f"tenants keys list {tenant}").out


def test_a_rotated_key_has_a_successor(ratoon: Ratoon, tenant: str, gateway: Served) -> None:
    old = ratoon(f"tenants keys create {tenant} --json").json
    new = ratoon(f"tenants keys rotate {tenant} {old['record']['id']}").out.strip()
    assert status_with(gateway, new) == 200
    assert status_with(gateway, old["key"]) == 401
    assert "\texpired\t" in ratoon(f"tenants keys list {tenant}").out


def test_rotation_may_overlap(ratoon: Ratoon, tenant: str, gateway: Served) -> None:
    old = ratoon(f"tenants keys create {tenant} --json").json
    new = ratoon(f"tenants keys rotate {tenant} {old['record']['id']} --overlap 10m").out.strip()
    assert status_with(gateway, new) == 200
    assert status_with(gateway, old["key"]) == 200


def test_disabling_and_enabling(ratoon: Ratoon, tenant: str, gateway: Served) -> None:
    key = ratoon(f"tenants keys create {tenant}").out.strip()
    said = ratoon(f"tenants disable {tenant}").out
    assert f"Disabled tenant {tenant}.\nKeys that stop working until it is enabled: 1.\n" in said
    assert "Running requests end" in said
    assert status_with(gateway, key) == 403
    assert record(ratoon, tenant)["disabled"] is True
    assert ratoon(f"tenants enable {tenant}").out == f"Enabled tenant {tenant}.\n"
    assert status_with(gateway, key) == 200


def test_a_tenant_is_known_by_its_id_too(ratoon: Ratoon, tenant: str) -> None:
    tenant_id = record(ratoon, tenant)["id"]
    assert ratoon(f"tenants disable {tenant_id} --json").json["name"] == tenant


def test_deleting_asks_first(ratoon: Ratoon, tenant: str, gateway: Served) -> None:
    key = ratoon(f"tenants keys create {tenant}").out.strip()
    refused = ratoon(f"tenants delete {tenant}", answer="n\n")
    assert refused.status == 1
    assert status_with(gateway, key) == 200
    assert ratoon(f"tenants delete {tenant}", answer="y\n").status == 0
    assert status_with(gateway, key) == 401


def test_yes_skips_the_confirmation_of_a_deletion(ratoon: Ratoon, tenant: str) -> None:
    said = ratoon(f"tenants delete {tenant} --yes").out
    assert re.fullmatch(rf"Deleted tenant {tenant} \(tn_\w+\)\.\n", said)
    assert ratoon(f"tenants keys list {tenant}").status == 2


@pytest.mark.parametrize(
    "line",
    [
        "tenants disable nobody",
        "tenants delete nobody --yes",
        "tenants keys list nobody",
        "tenants keys create nobody",
        "cache flush --tenant nobody",
    ],
)
def test_an_unknown_tenant_is_named(ratoon: Ratoon, line: str) -> None:
    printed = ratoon(line)
    assert printed.status == 2
    assert "there is no tenant 'nobody'" in printed.err


def test_an_unknown_key_is_the_servers_404(ratoon: Ratoon, tenant: str) -> None:
    printed = ratoon(f"tenants keys revoke {tenant} key_none")
    assert printed.status == 1
    assert "(404)" in printed.err


@pytest.mark.parametrize("duration", ["30", "d", "-1d", "0d", "1y", "1.5h", ""])
def test_a_duration_that_is_none_is_refused(
    console: Console, gateway: Served, tenant: str, duration: str
) -> None:
    env = {"RATOON_URL": gateway.url, "RATOON_ADMIN_KEY": gateway.admin_key}
    printed = console.type("tenants", "keys", "create", tenant, f"--expires-in={duration}", env=env)
    assert printed.status == 2
    assert "--expires-in" in printed.err


def test_a_wrong_admin_key_is_reported(console: Console, gateway: Served) -> None:
    printed = console.type("tenants", "list", "--url", gateway.url, "--admin-key", gateway.key)
    assert printed.status == 1
    assert "(401); the key is from --admin-key or RATOON_ADMIN_KEY" in printed.err


def test_the_stats_are_shown_as_tables(ratoon: Ratoon) -> None:
    printed = ratoon("cache stats")
    assert printed.status == 0
    for word in ("Prompt tokens", "Pool (blocks of 16 tokens)", "evictable", "Tenants", "up for"):
        assert word in printed.out


def test_the_stats_are_json_for_machines(ratoon: Ratoon) -> None:
    answer = ratoon("cache stats --json").json
    assert answer["pool"]["block_size"] == 16
    assert answer["queue"] == {"running": 0, "waiting": 0}


def test_a_flush_says_how_much_it_forgot(ratoon: Ratoon, tenant: str, gateway: Served) -> None:
    body = {"model": "tiny", "prompt": "x" * 64, "max_tokens": 1}
    headers = {"Authorization": f"Bearer {gateway.key}"}
    ratoon("cache flush --yes")
    httpx.post(f"{gateway.url}/v1/completions", json=body, headers=headers).raise_for_status()
    assert re.fullmatch(r"Dropped [1-9]\d* blocks\.\n", ratoon("cache flush --yes").out)
    assert ratoon(f"cache flush --tenant {tenant} --json").json == {
        "flushed_blocks": 0,
        "awaited": [],
    }


def test_limits_are_set_shown_kept_and_taken_away(ratoon: Ratoon, tenant: str) -> None:
    assert "no limits" in ratoon(f"tenants limits {tenant}").out
    line = f"tenants limits {tenant} --requests-per-minute 600 --budget 50 --period total"
    assert ratoon(line).status == 0
    assert ratoon(f"tenants limits {tenant} --burst-s 1.5 --priority batch").status == 0
    listed = record(ratoon, tenant)
    assert listed["priority"] == "batch"
    assert listed["limits"] == {
        "requests_per_minute": 600,
        "burst_s": 1.5,
        "budget": {"units": 50.0, "period": "total"},
    }
    shown = ratoon(f"tenants limits {tenant} --requests-per-minute 0").out
    assert "requests" not in shown
    assert "budget: 50 units, total" in shown
    shown = ratoon(f"tenants limits {tenant} --tokens-per-minute 1234567").out
    assert "tokens per minute: 1234567\n" in shown
    ratoon(f"tenants limits {tenant} --tokens-per-minute 0")
    assert "limits" in ratoon(f"tenants limits {tenant} --budget 0 --burst-s 0 --json").json
    assert record(ratoon, tenant)["limits"] == {}


def test_a_target_between_tokens_is_set_shown_and_taken_away(ratoon: Ratoon, tenant: str) -> None:
    told = "target between tokens: 25 ms"
    assert told not in ratoon(f"tenants limits {tenant}").out
    assert told in ratoon(f"tenants limits {tenant} --target-itl-ms 25").out
    assert told in ratoon(f"tenants limits {tenant}").out
    assert record(ratoon, tenant)["target_itl_ms"] == 25.0
    assert "target between tokens\t25 ms" in ratoon(f"tenants show {tenant}").out
    assert told not in ratoon(f"tenants limits {tenant} --target-itl-ms 0").out
    assert "target between tokens\tthe server's" in ratoon(f"tenants show {tenant}").out
    assert ratoon(f"tenants limits {tenant} --target-itl-ms 60001").status == 2
