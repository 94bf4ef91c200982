"""A real server on a full file system still revokes keys, serves tenants and starts.

Before the server reserved room, keys could not be revoked, tenants with limits were refused, usage
was lost and the next start failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.state.reserved_room import BALLAST_BYTES, BALLAST_FILE
from tests.doubles.disk.damage import fill_up, small_disk
from tests.doubles.waiting import wait_for
from tests.seams.support.lone_gateway import started
from tests.seams.support.ratoon import printed_by
from tests.seams.support.server import Server, running_server

LIMITS = {
    "requests_per_minute": 1000,
    "budget": {"units": 1_000_000, "period": "month"},
}
REVOCATIONS = 50


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "disk") as directory:
            yield directory
    except PermissionError as error:
        pytest.skip(f"no file system of one's own: {error}")


def chat(server: Server, key: str) -> httpx.Response:
    body = {
        "model": "handbook",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 2,
    }
    with server.client(key) as http:
        return http.post("/v1/chat/completions", json=body)


def ready(url: str) -> dict[str, str]:
    found: dict[str, str] = httpx.get(url + "/readyz", timeout=60).json()
    return found


def requests_of(server: Server, tenant: str) -> int:
    with server.client(server.admin_key) as http:
        rows = http.get("/admin/usage", params={"tenant": tenant}).json()
    return sum(row["requests"] for row in rows["usage"])


def revoke_by_hand(server: Server, tenant: str, key_id: str, log: Path) -> None:
    """Run `ratoon tenants keys revoke`, as an operator types it."""
    command = ["tenants", "keys", "revoke", tenant, key_id]
    place = ["--url", server.url, "--data-dir", str(server.data_dir)]
    printed_by([*command, *place], log)


def test_a_full_disk_stops_nobody_who_must_not_be_stopped(disk: Path, tmp_path: Path) -> None:
    data_dir = disk / "data"
    settings = {"RATOON_DISK_CACHE_DIR": str(tmp_path / "blocks")}
    with running_server(data_dir, settings) as server, server.client(server.admin_key) as admin:
        tenant = admin.post("/admin/tenants", json={"name": "acme", "limits": LIMITS}).json()["id"]
        keys = [admin.post(f"/admin/tenants/{tenant}/keys").json() for _ in range(REVOCATIONS + 2)]
        stays, by_hand, *others = keys
        assert chat(server, stays["key"]).status_code == 200
        wait_for(lambda: (data_dir / BALLAST_FILE).stat().st_size == BALLAST_BYTES, 20)
        wait_for(lambda: ready(server.url)["status"] == "ready", 20)

        fill_up(disk)
        wait_for(lambda: ready(server.url)["status"] == "disk_full", 20)
        assert "make room" in ready(server.url)["reason"]
        assert chat(server, by_hand["key"]).status_code == 200
        revoke_by_hand(server, tenant, by_hand["record"]["id"], tmp_path / "revoke.log")
        for key in others:
            place = f"/admin/tenants/{tenant}/keys/{key['record']['id']}"
            assert admin.delete(place).status_code == 200
        for key in (by_hand, others[0], others[-1]):
            assert chat(server, key["key"]).status_code == 401
        served = [chat(server, stays["key"]).status_code for _ in range(5)]
        assert served == [200] * 5
        wait_for(lambda: requests_of(server, tenant) == 7, 20)
        chat(server, stays["key"])  # the usage of this request is stored at the stop

    fill_up(disk)  # fills the room that the stop has freed
    assert os.statvfs(disk).f_bavail == 0
    with started(data_dir) as gateway:
        assert gateway.process.poll() is None, (disk / "log").read_text()
        wait_for(lambda: gateway.metric("disk_full"), 20)
        assert gateway.ask("/v1/models", by_hand["key"]).status_code == 401
        assert gateway.ask("/v1/models", stays["key"]).status_code == 200
        usage = gateway.ask("/admin/usage", gateway.key("RATOON_ADMIN_KEY")).json()["usage"]
        assert sum(row["requests"] for row in usage if row["tenant_id"] == tenant) == 8
