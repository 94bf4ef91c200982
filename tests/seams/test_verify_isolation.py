"""`ratoon verify-isolation` against real servers: one that keeps tenants apart, one that does not.

Pools are so small that blocks go down all tiers, and so is the model: whose blocks are found does
not depend on what it computes. The timing test runs with few samples: it is to come out, whatever
it says on a busy machine.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.isolation.cells import CASES, PUBLISHED_CASES
from cli.isolation.findings import Finding
from cli.isolation.timing import Timing
from cli.isolation.verdict import overall
from tests.cli.console import Console, Printed
from tests.doubles.tiny_model import RUNNABLE, write_tiny_model
from tests.seams.canaries import forms
from tests.seams.server import Server, running_server

SMALL = {
    "RATOON_CACHE_TOKENS": "1536",
    "RATOON_MAX_MODEL_LEN": "512",
    "RATOON_HOST_CACHE_TOKENS": "6144",
    "RATOON_DISK_CACHE_GIB": "0.2",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
}
NO_TIMING = ("--samples", "0")


@pytest.fixture
def small(tmp_path: Path) -> dict[str, str]:
    """Settings of a server."""
    return SMALL | {"RATOON_MODEL": str(write_tiny_model(tmp_path / "tiny", config=RUNNABLE))}


def verify(server: Server, *words: str) -> Printed:
    target = ("--url", server.url, "--admin-key", server.admin_key, "--quick", "--json")
    return Console().type("verify-isolation", *target, *words)


def cells(record: dict[str, Any], tier: str) -> list[dict[str, Any]]:
    return [finding for finding in record["findings"] if finding["tier"] == tier]


def expect_nothing_left(server: Server) -> None:
    with server.client(server.admin_key) as client:
        tenants = client.get("/admin/tenants").json()["tenants"]
        assert {tenant["name"] for tenant in tenants} == {"demo", "demo2"}
        assert client.get("/admin/groups").json() == {"groups": []}
        assert client.get("/admin/prefixes").json() == {"prefixes": []}


def expect_isolated(record: dict[str, Any], tier: str) -> None:
    found = cells(record, tier)
    assert len(found) == len(CASES) + len(PUBLISHED_CASES)
    for finding in found:
        assert finding["outcome"] in ("passed", "allowed"), finding
        assert finding["control_full"], finding
        assert finding["may_reuse"] is None or finding["reused"] in (None, finding["may_reuse"])
    some_is_published = [f["case"] for f in found if f["may_reuse"]]
    assert len(some_is_published) == 4, some_is_published


def test_nothing_leaks_in_any_tier_and_over_a_restart(
    tmp_path: Path, small: dict[str, str]
) -> None:
    half, report = tmp_path / "half.json", tmp_path / "report.md"
    restart = ("--after-restart", str(half), "--report", str(report))
    with running_server(tmp_path / "data", small) as server:
        first = verify(server, *restart, "--samples", "20", "--timing-tokens", "64")
        assert first.status == 0, first.err
        assert "Restart" in first.err
        assert stat.S_IMODE(half.stat().st_mode) == 0o600
        keys = {seed["cast"]["first"]["key"] for seed in json.loads(half.read_bytes())["seeds"]}
        keys.add(server.admin_key)
    with running_server(tmp_path / "data", small) as server:
        second = verify(server, *restart)
        expect_nothing_left(server)
    record = second.json
    for tier in ("device", "host", "disk", "evicted", "restarted"):
        expect_isolated(record, tier)
    assert not half.exists()
    assert {f["dimension"] for f in cells(record, "any")} == {"model", "adapter"}
    assert all(f["outcome"].startswith("not ") for f in cells(record, "any"))
    assert record["timing"]["across"]["samples"] == 20
    # Twenty samples lie wholly on one side now and then: the verdict says so, the cells do not.
    assert not any(f["outcome"] == "leaks" for f in record["findings"])
    assert record["verdict"] == overall(
        msgspec.convert(record["findings"], list[Finding]),
        msgspec.convert(record["timing"], Timing),
    )
    written = report.read_text() + second.out + first.out
    for key in keys:
        assert not any(form.decode("latin1") in written for form in forms(key).values())
    assert record["server"]["fingerprint"] in report.read_text()


def test_a_server_that_shares_everything_is_found_out(
    tmp_path: Path, small: dict[str, str]
) -> None:
    with running_server(tmp_path / "data", {**small, "RATOON_SHARE_ALL": "1"}) as server:
        printed = verify(server, "--tiers", "device,host", *NO_TIMING)
        expect_nothing_left(server)
    assert printed.status == 1
    assert printed.json["verdict"] == "leaks"
    for tier in ("device", "host"):
        found = cells(printed.json, tier)
        outcomes = {f["case"]: f["outcome"] for f in found if f["dimension"] != "published"}
        behind = {f["case"]: f["outcome"] for f in found if f["dimension"] == "published"}
        assert outcomes["another tenant"] == "leaks"
        assert outcomes["stranger"] == "leaks"
        assert behind["another tenant"] == "leaks"
        # A salt is a salt, whoever shares the rest.
        assert outcomes["unset, set"] == "passed"


def test_tiers_that_are_not_there_are_not_applicable_and_not_passed(
    tmp_path: Path, small: dict[str, str]
) -> None:
    alone = {**small, "RATOON_HOST_CACHE_TOKENS": "0", "RATOON_DISK_CACHE_GIB": "0"}
    with running_server(tmp_path / "data", alone) as server:
        printed = verify(server, "--tiers", "host,disk,evicted", *NO_TIMING)
    assert printed.status == 0
    for tier in ("host", "disk"):
        assert {f["outcome"] for f in cells(printed.json, tier)} == {"not applicable"}
    expect_isolated(printed.json, "evicted")
