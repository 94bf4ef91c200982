"""A tenant that fills the cache cannot infer others' tokens from its own evictions.

`ratoon verify-isolation` makes this attack (prime and probe) on a real server with small pools and
all three tiers. The attacker can read in which tiers its own blocks are. By default a trial reveals
nothing: all readings are equal. Positive controls are the same attack within one tenant, and an
attack on a server with shared caches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.console import Console
from tests.doubles.engine.tiny_model import ONE_LAYER, write_tiny_model
from tests.seams.support.server import running_server

SMALL = {
    "RATOON_CACHE_TOKENS": "2048",
    "RATOON_MAX_MODEL_LEN": "1536",
    "RATOON_HOST_CACHE_TOKENS": "1024",
    "RATOON_DISK_CACHE_GIB": "0.1",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
}
POOLED = {
    "RATOON_CACHE_SHARING": "pooled",
    "RATOON_HOST_CACHE_TOKENS": "0",
    "RATOON_DISK_CACHE_GIB": "0",
}
ONLY_EVICTION = ("--tiers", "device", "--quick", "--samples", "0", "--eviction-trials")


def attacked(tmp_path: Path, settings: dict[str, str], trials: int = 2) -> dict[str, Any]:
    model = {"RATOON_MODEL": str(write_tiny_model(tmp_path / "tiny", config=ONE_LAYER))}
    with running_server(tmp_path / "data", SMALL | model | settings) as server:
        target = ("--url", server.url, "--admin-key", server.admin_key, "--json")
        record: dict[str, Any] = (
            Console().type("verify-isolation", *target, *ONLY_EVICTION, str(trials)).json
        )
    return record


def test_nothing_is_learnt_where_each_tenant_has_its_part(tmp_path: Path) -> None:
    record = attacked(tmp_path, {})
    eviction = record["eviction"]
    assert eviction["across"]["trials"] == 20, "two for each level, and two with marks"
    assert eviction["across"]["readings"] == 1
    assert eviction["across"]["bits"] < 0.05
    assert eviction["control"]["bits"] > 0.5
    assert record["eviction_outcome"] == "passed"


def test_the_control_everything_is_learnt_where_tenants_share_the_room(tmp_path: Path) -> None:
    record = attacked(tmp_path, POOLED, trials=1)
    assert record["eviction"]["across"]["bits"] > 0.5
    assert record["eviction_outcome"] == record["verdict"] == "leaks"
