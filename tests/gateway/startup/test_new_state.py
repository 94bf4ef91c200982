"""A start with another state store than before: it is refused, and accepted with `--new-state`."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.auth.keyring import Keyring
from gateway.auth.secrets import load_secrets
from gateway.limits.home import LIMITS_FILE
from gateway.limits.limiter import Amount, Demand
from gateway.limits.sqlite import SqliteLimiter
from gateway.startup.first_start import KEYS_FILE, FirstStart, ensure_first_start, read_keys
from gateway.state.home import STATE_FILE
from gateway.state.identity import WrongState
from gateway.state.sqlite.store import SqliteStore
from gateway.tenant_limits import Limits
from tests.doubles.disk.damage import overwrite
from tests.gateway.support.manual_clock import ManualClock

CLOCK = ManualClock()


async def start(data_dir: Path, *, new_state: bool = False) -> FirstStart:
    return await ensure_first_start(data_dir, clock=CLOCK, new_state=new_state)


async def tenant_of(data_dir: Path, key: str | None) -> str:
    """Return the id of the tenant to which `key` belongs."""
    store = SqliteStore(data_dir / STATE_FILE)
    try:
        keyring = Keyring(store, load_secrets(data_dir).pepper, CLOCK)
        return (await keyring.identify(key or "")).tenant_id
    finally:
        await store.close()


def gone(data_dir: Path) -> None:
    (data_dir / STATE_FILE).unlink()


def emptied(data_dir: Path) -> None:
    os.truncate(data_dir / STATE_FILE, 0)


def without_tables(data_dir: Path) -> None:
    emptied(data_dir)
    connection = sqlite3.connect(data_dir / STATE_FILE)
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA user_version = 0;")
    connection.close()


def of_another(data_dir: Path) -> None:
    connection = sqlite3.connect(data_dir / STATE_FILE)
    connection.execute("UPDATE identity SET id = ?", ("f" * 32,))
    connection.commit()
    connection.close()


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("harm", [gone, emptied, without_tables])
async def test_a_lost_state_is_refused_and_a_new_one_is_whole(
    tmp_path: Path, harm: Callable[[Path], None], marked: bool
) -> None:
    first = await start(tmp_path)
    if not marked:  # the state as left by a release without markers
        (tmp_path / "state.id").unlink()
    harm(tmp_path)
    for _ in range(2):
        with pytest.raises(WrongState, match=r"state\.sqlite.*--new-state"):
            await start(tmp_path)
    accepted = await start(tmp_path, new_state=True)
    assert accepted.admin_key == first.admin_key
    assert accepted.demo_key != first.demo_key
    assert await tenant_of(tmp_path, accepted.demo_key)
    later = await start(tmp_path)
    assert later.demo_key == accepted.demo_key == read_keys(tmp_path / KEYS_FILE)["RATOON_DEMO_KEY"]


async def test_a_directory_of_a_release_without_ids_is_taken_over(tmp_path: Path) -> None:
    first = await start(tmp_path)
    tenant = await tenant_of(tmp_path, first.demo_key)
    (tmp_path / "state.id").unlink()
    connection = sqlite3.connect(tmp_path / STATE_FILE)
    connection.execute("DROP TABLE identity")
    connection.commit()
    connection.close()
    await start(tmp_path)
    assert await tenant_of(tmp_path, first.demo_key) == tenant
    assert (tmp_path / "state.id").exists()


async def test_another_state_is_refused_and_kept_as_it_is_when_accepted(tmp_path: Path) -> None:
    first = await start(tmp_path)
    of_another(tmp_path)
    with pytest.raises(WrongState, match="is not the one that was here"):
        await start(tmp_path)
    accepted = await start(tmp_path, new_state=True)
    assert accepted.demo_key == first.demo_key
    assert (tmp_path / "state.id").read_text().strip() == "f" * 32
    await start(tmp_path)


async def test_the_flag_changes_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    def small_files() -> dict[str, bytes]:
        return {
            file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != STATE_FILE
        }

    first = await start(tmp_path)
    before = small_files()
    tenant = await tenant_of(tmp_path, first.demo_key)
    await start(tmp_path, new_state=True)
    assert small_files() == before
    assert await tenant_of(tmp_path, first.demo_key) == tenant


async def test_the_flag_on_a_first_start_is_a_first_start(tmp_path: Path) -> None:
    assert (await start(tmp_path / "data", new_state=True)).created


async def test_a_damaged_state_is_set_aside_and_none_is_overwritten(tmp_path: Path) -> None:
    await start(tmp_path)
    for number in (1, 2):
        overwrite(tmp_path / STATE_FILE, number)
        damaged = (tmp_path / STATE_FILE).read_bytes()
        await start(tmp_path)  # the start succeeds, but the gateway reports a fault
        accepted = await start(tmp_path, new_state=True)
        assert await tenant_of(tmp_path, accepted.demo_key)
        assert (tmp_path / f"{STATE_FILE}.damaged-{number}").read_bytes() == damaged


async def test_damaged_limits_are_set_aside_and_the_state_stays(tmp_path: Path) -> None:
    first = await start(tmp_path)
    limits = tmp_path / LIMITS_FILE
    limiter = SqliteLimiter(limits)
    await limiter.reserve(Demand("a", "tn_a", Limits(requests_per_minute=1), Amount()))
    await limiter.close()
    (tmp_path / "limits.id").touch(0o600)
    overwrite(limits, 1)
    accepted = await start(tmp_path, new_state=True)
    assert accepted.demo_key == first.demo_key
    assert (tmp_path / f"{LIMITS_FILE}.damaged-1").exists()
    assert not limits.exists()
    assert not (tmp_path / "limits.id").exists()
