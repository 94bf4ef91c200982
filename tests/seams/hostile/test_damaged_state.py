"""Damage to a real server's state on disk is noticed and answered with a typed 503.

The state is damaged, emptied, deleted or exchanged. Before the gateway had its checks, it went on
with untyped 500s and resets, or silently without tenants.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.doubles.disk.damage import overwrite
from tests.doubles.waiting import wait_for
from tests.seams.support.lone_gateway import Gateway, started

STATE, LIMITS = "state.sqlite", "limits.sqlite"


def log_of(data_dir: Path) -> str:
    return (data_dir.parent / "log").read_text()


@pytest.fixture(scope="module")
def served_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a data directory as a stopped server leaves it."""
    data_dir = tmp_path_factory.mktemp("once") / "data"
    with started(data_dir) as gateway:
        assert gateway.code() is None
    return data_dir


@pytest.fixture
def data_dir(served_once: Path, tmp_path: Path) -> Path:
    shutil.copytree(served_once, tmp_path / "data")
    return tmp_path / "data"


def test_control_one_that_is_whole_is_served(data_dir: Path) -> None:
    with started(data_dir) as gateway:
        assert gateway.code() is None
        assert gateway.status() == "not_ready"  # there is no engine, but no other fault
        assert not gateway.metric("state_damaged")


@pytest.mark.parametrize("seed", [1, 2])
def test_damage_is_a_typed_503_on_every_request(data_dir: Path, seed: int) -> None:
    overwrite(data_dir / STATE, seed)
    with started(data_dir) as gateway:
        for _ in range(5):
            assert gateway.code() == "state_damaged"
        admin = gateway.ask("/admin/tenants", gateway.key("RATOON_ADMIN_KEY"))
        assert (admin.status_code, admin.json()["error"]["code"]) == (503, "state_damaged")
        wait_for(lambda: gateway.metric("state_damaged"), 20)
    assert "state.sqlite is damaged" in log_of(data_dir)
    with started(data_dir, "--new-state") as gateway:
        assert gateway.code() is None
    assert (data_dir / f"{STATE}.damaged-1").exists()


def code_after_damage(gateway: Gateway) -> str | None:
    """Damage the state and send a request, repeatedly: a write-back of the WAL may repair it."""
    overwrite(gateway.data_dir / STATE, 1)
    return gateway.code()


def test_damage_while_it_runs_is_noticed(data_dir: Path) -> None:
    with started(data_dir) as gateway:
        assert gateway.code() is None
        wait_for(lambda: code_after_damage(gateway) == "state_damaged", 30)
        wait_for(lambda: gateway.metric("state_damaged"), 10)


def gone(data_dir: Path) -> None:
    (data_dir / STATE).unlink(missing_ok=True)


def emptied(data_dir: Path) -> None:
    os.truncate(data_dir / STATE, 0)


@pytest.mark.parametrize("harm", [gone, emptied])
def test_a_start_without_what_was_there_is_refused_until_it_is_accepted(
    data_dir: Path, harm: Callable[[Path], None]
) -> None:
    harm(data_dir)
    with started(data_dir) as gateway:
        assert gateway.process.wait(30) == 2
    said = log_of(data_dir)
    assert "--new-state" in said
    assert STATE in said
    assert "Traceback" not in said
    with started(data_dir, "--new-state") as gateway:
        assert gateway.code() is None  # the gateway accepts the new keys in keys.env


@pytest.mark.parametrize("harm", [gone, emptied])
def test_a_state_that_goes_while_it_runs_is_missing(
    data_dir: Path, harm: Callable[[Path], None]
) -> None:
    def is_noticed() -> bool:
        harm(data_dir)  # repeated, since a write-back of the WAL may refill an emptied file
        return gateway.metric("state_missing")

    with started(data_dir) as gateway:
        assert not gateway.metric("state_missing")
        wait_for(is_noticed, 20)
        wait_for(lambda: gateway.code() == "state_missing", 20)


def test_damaged_limits_do_not_begin_again(data_dir: Path) -> None:
    (data_dir / LIMITS).write_bytes(b"no database" * 1000)
    with started(data_dir) as gateway:
        wait_for(lambda: gateway.metric("limits_damaged"), 20)
        tenant = gateway.ask("/admin/tenants", gateway.key("RATOON_ADMIN_KEY"))
        assert tenant.status_code == 200, "the state is whole"
    assert "limits.sqlite is damaged" in log_of(data_dir)
    assert (data_dir / LIMITS).read_bytes() == b"no database" * 1000


def test_an_older_backup_of_the_same_state_is_welcome(data_dir: Path) -> None:
    shutil.copy(data_dir / STATE, data_dir / "backup")
    with started(data_dir) as gateway, httpx.Client(base_url=gateway.url) as http:
        admin = {"authorization": f"Bearer {gateway.key('RATOON_ADMIN_KEY')}"}
        assert http.post("/admin/tenants", json={"name": "late"}, headers=admin).status_code == 201
    (data_dir / "backup").replace(data_dir / STATE)
    with started(data_dir) as gateway:
        assert gateway.code() is None
        assert "late" not in gateway.ask("/admin/tenants", gateway.key("RATOON_ADMIN_KEY")).text
