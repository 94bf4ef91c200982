"""`ratoon verify-isolation` passes real servers with isolation, and finds the leaks of others.

Pools are so small that blocks reach all tiers. The model is small too, since hits do not depend on
what it computes. The timing test has few samples. It must end, but on a busy machine its verdict
may be anything. `hostile/test_prime_and_probe.py` has the eviction test.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.isolation.cases import CASES, MODULE_CASES, PUBLISHED_CASES
from cli.isolation.stored import STORED
from cli.operating.audit import MARK
from tests.cli.console import Console, Printed
from tests.doubles.engine.tiny_model import HYBRID, ONE_LAYER, write_tiny_model
from tests.doubles.ports import free_port
from tests.doubles.waiting import wait_for
from tests.examples import in_the_zoo
from tests.seams.support.canaries import forms
from tests.seams.support.server import Server, running_server

SMALL = {
    "RATOON_CACHE_TOKENS": "1536",
    "RATOON_MAX_MODEL_LEN": "512",
    "RATOON_HOST_CACHE_TOKENS": "3072",
    "RATOON_DISK_CACHE_GIB": "0.2",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
}
UNHURRIED = ("--within-s", "3600")  # --quick alone would leave a busy machine too little time
PAIRED_ONLY = ("--samples", "0", "--eviction-trials", "0")


def with_tiny_model(directory: Path) -> dict[str, str]:
    return SMALL | {"RATOON_MODEL": str(write_tiny_model(directory / "tiny", config=ONE_LAYER))}


@pytest.fixture
def small(tmp_path: Path) -> dict[str, str]:
    """Return settings of a small server."""
    return with_tiny_model(tmp_path)


@pytest.fixture(scope="module")
def device_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server without lower tiers, for tests that leave it unchanged."""
    directory = tmp_path_factory.mktemp("alone")
    no_tiers = {"RATOON_HOST_CACHE_TOKENS": "0", "RATOON_DISK_CACHE_GIB": "0"}
    with running_server(directory / "data", with_tiny_model(directory) | no_tiers) as server:
        yield server


def verify(server: Server, *words: str) -> Printed:
    target = ("--url", server.url, "--admin-key", server.admin_key, "--quick", "--json", *UNHURRIED)
    return Console().type("verify-isolation", *target, *words)


def started(server: Server, *words: str) -> subprocess.Popen[str]:
    """Start the command in its own process."""
    target = ("--url", server.url, "--admin-key", server.admin_key, "--quick", "--json", *UNHURRIED)
    ratoon = (sys.executable, "-c", "from cli.main import main; main()")
    return subprocess.Popen(
        [*ratoon, "verify-isolation", *target, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said_by(running: subprocess.Popen[str]) -> str:
    """Return the next line that the process writes on standard error."""
    assert running.stderr is not None
    return running.stderr.readline()


def cells(record: dict[str, Any], tier: str) -> list[dict[str, Any]]:
    return [finding for finding in record["findings"] if finding["tier"] == tier]


def expect_nothing_left(server: Server) -> None:
    with server.client(server.admin_key) as client:
        tenants = client.get("/admin/tenants").json()["tenants"]
        assert {tenant["name"] for tenant in tenants} == {"demo", "demo2"}
        assert client.get("/admin/groups").json() == {"groups": []}
        assert client.get("/admin/prefixes").json() == {"prefixes": []}


def has_temporary_tenants(server: Server) -> bool:
    with server.client(server.admin_key) as client:
        tenants = client.get("/admin/tenants").json()["tenants"]
    return any(tenant["name"].startswith(MARK) for tenant in tenants)


def expect_isolated(record: dict[str, Any], tier: str) -> None:
    found = [one for one in cells(record, tier) if one["outcome"] != "not applicable"]
    modules = len(MODULE_CASES) if record["server"]["has_modules"] else 0
    assert len(found) == len(CASES) + len(PUBLISHED_CASES) + modules
    for finding in found:
        assert finding["outcome"] in ("passed", "allowed"), finding
        assert finding["control_full"], finding
        assert finding["may_reuse"] is None or finding["reused"] in (None, finding["may_reuse"])
    some_is_published = [f["case"] for f in found if f["may_reuse"]]
    assert len(some_is_published) == 4, some_is_published


def control_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the findings on cache control, by case."""
    found = [f for f in cells(record, "any") if f["dimension"] == "cache control"]
    return {f["case"].removeprefix("another's "): f for f in found}


def expect_nothing_told(record: dict[str, Any]) -> None:
    found = control_of(record)
    assert set(found) == {"probe", "list", "mark", "deletion"}
    for finding in found.values():
        assert (finding["outcome"], finding["reused"]) == ("passed", 0), finding
        assert finding["control_full"], finding
    stored = [f for f in cells(record, "any") if f["dimension"] == STORED]
    applying = [f for f in stored if f["outcome"] != "not applicable"]
    assert len(applying) == (7 if record["server"]["has_modules"] else 4)
    for finding in applying:
        assert (finding["outcome"], finding["reused"]) == ("passed", 0), finding
        assert finding["control_full"], finding


def test_nothing_leaks_in_lower_tiers_and_over_a_restart(
    tmp_path: Path, small: dict[str, str]
) -> None:
    report, settings = tmp_path / "report.md", small | {"RATOON_PORT": str(free_port())}
    tiers = ("--tiers", "host,disk,evicted")
    words = (*tiers, "--restart", "--report", str(report), "--eviction-trials", "0")
    with running_server(tmp_path / "data", settings) as server:
        running = started(server, *words, "--samples", "10", "--timing-tokens", "64")
        while "Restart the server now" not in said_by(running):
            assert running.poll() is None
    with running_server(tmp_path / "data", settings) as server:
        out, err = running.communicate(timeout=120)
        expect_nothing_left(server)
        with server.client(server.admin_key) as client:
            kept = client.get("/admin/overview").json()["isolation"]
    record = json.loads(out)
    assert (kept["verdict"], kept["samples"]) == (record["verdict"], 10)
    assert kept["report"] == report.read_text()
    for tier in ("host", "disk", "evicted", "restarted"):
        expect_isolated(record, tier)
    expect_nothing_told(record)
    tested = ("cache control", "gaps", STORED)
    absent = [f for f in cells(record, "any") if f["dimension"] not in tested]
    assert {f["dimension"] for f in absent} == {"model", "adapter"}
    assert all(f["outcome"].startswith("not ") for f in absent)
    assert record["timing"]["across"]["samples"] == 10
    # By chance, all ten hits may be faster than all misses. Then the verdict is "leaks", but
    # every finding must still have another outcome.
    assert not any(f["outcome"] == "leaks" for f in record["findings"])
    across = record["timing"]["across"]
    is_apart = across["low"] > 0.53 or across["high"] < 0.47
    assert across["high"] - across["low"] > 0.06, "too few samples to lie within the tolerance"
    timed = record["gaps_outcome"], record["modules_outcome"]
    expected = "leaks" if is_apart or "leaks" in timed else "inconclusive"
    assert record["verdict"] == expected
    assert running.returncode == 1, "the verdict is not that all passed"
    assert f"the verdict is: {record['verdict']}" in err
    written = report.read_text() + out + err
    assert not any(form.decode("latin1") in written for form in forms(server.admin_key).values())
    tenants_key = re.compile(r"sk-[A-Za-z0-9_-]{43}")
    assert tenants_key.search(server.demo_key)
    assert not tenants_key.search(written)
    assert record["server"]["fingerprint"] in report.read_text()


@pytest.mark.parametrize("tiers", ["disk", *in_the_zoo("host,disk,evicted")])
def test_states_of_recurrent_layers_are_tested_in_lower_tiers_too(
    tmp_path: Path, tiers: str
) -> None:
    """Prompts reach the disk through the host tier."""
    model = write_tiny_model(tmp_path / "tiny", config=HYBRID)
    settings = SMALL | {"RATOON_MODEL": str(model), "RATOON_MAX_RUNNING": "4"}
    with running_server(tmp_path / "data", settings) as server:
        found = verify(server, "--tiers", tiers, *PAIRED_ONLY)
        with server.client(server.admin_key) as client:
            states = client.get("/admin/cache/stats").json()["states"]
    assert (found.status, found.json["left_out"]) == (0, [])
    for tier in tiers.split(","):
        expect_isolated(found.json, tier)
    assert states["copied_down"] > 0


def test_a_server_that_shares_everything_is_found_out(
    tmp_path: Path, small: dict[str, str]
) -> None:
    """This server shares host memory. `faults/test_machines.py` tests shared device memory."""
    with running_server(tmp_path / "data", {**small, "RATOON_SHARE_ALL": "1"}) as server:
        printed = verify(server, "--tiers", "device,host,disk", *PAIRED_ONLY)
        expect_nothing_left(server)
    assert printed.status == 1
    assert printed.json["verdict"] == "leaks"
    found = cells(printed.json, "host")
    outcomes = {f["case"]: f["outcome"] for f in found if f["dimension"] != "published"}
    behind = {f["case"]: f["outcome"] for f in found if f["dimension"] == "published"}
    assert outcomes["another tenant"] == "leaks"
    assert outcomes["stranger"] == "leaks"
    assert behind["another tenant"] == "leaks"
    for tier in ("device", "host", "disk"):
        modules = {f["case"]: f["outcome"] for f in cells(printed.json, tier)}
        assert modules["another tenant's, of the same text"] == "leaks"
        assert modules["the same salt of two tenants"] == "leaks"
        assert modules["the same text under another salt"] == "passed"
    # A salt separates prompts even if everything else is shared.
    assert outcomes["unset, set"] == "passed"
    told = {case: finding["outcome"] for case, finding in control_of(printed.json).items()}
    assert told["probe"] == told["mark"] == "leaks"


def test_nothing_leaks_on_the_device_and_tiers_that_are_not_there_are_not_applicable(
    device_alone: Server,
) -> None:
    printed = verify(device_alone, "--tiers", "device,host,disk", *PAIRED_ONLY)
    assert (printed.status, printed.json["left_out"]) == (0, [])
    for tier in ("host", "disk"):
        assert {f["outcome"] for f in cells(printed.json, tier)} == {"not applicable"}
    expect_isolated(printed.json, "device")
    expect_nothing_told(printed.json)


def test_a_run_that_is_stopped_removes_what_it_made(device_alone: Server) -> None:
    running = started(device_alone, *PAIRED_ONLY)
    wait_for(lambda: has_temporary_tenants(device_alone), 60)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    expect_nothing_left(device_alone)
    assert running.returncode == 1
    assert "stopped by SIGTERM" in err


def test_what_there_is_no_time_for_is_named_and_the_way_is_shown(device_alone: Server) -> None:
    """Positive control: the test above, which has time for all cells."""
    printed = verify(device_alone, "--within-s", "1", "--samples", "1000000")
    expect_nothing_left(device_alone)
    assert (printed.status, printed.json["verdict"]) == (1, "inconclusive")
    left_out = " ".join(printed.json["left_out"])
    for words in ("cells of the paired test, evicted", "samples of the timing test", "eviction"):
        assert words in left_out
    cut = [f for f in printed.json["findings"] if f["outcome"] == "left out"]
    assert {f["note"] for f in cut} <= {"there was no time", "it did not end in time"}
    assert "paired, device: 28 of 28" in printed.err
