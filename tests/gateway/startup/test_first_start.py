from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from pathlib import Path

import pytest

from gateway.auth.keyring import Keyring, key_digest
from gateway.auth.secrets import SECRETS_FILE, load_or_create_secrets, load_secrets
from gateway.startup.first_start import (
    KEYS_FILE,
    BadAdminKey,
    FirstStart,
    ensure_first_start,
    load_admin_key,
    metrics_key,
    read_keys,
)
from gateway.state.home import STATE_FILE
from gateway.state.private_file import (
    FileExposed,
    FileMissing,
    PrivateFileDamaged,
    create_private,
)
from gateway.state.records import Tenant
from gateway.state.sqlite.store import SqliteStore
from gateway.tenant_limits import CacheQuota
from prefix_cache.eviction.shares import Quota, partition
from tests.gateway.support.manual_clock import ManualClock

CLOCK = ManualClock()
GIVEN = "the-operator-chose-this-one"


class PowerCut(BaseException):
    """An error that no code under test catches."""


class FailingClock:
    """A clock that raises PowerCut at its reading number `fail_at`."""

    def __init__(self, fail_at: int) -> None:
        self.fail_at = fail_at
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        if self.readings == self.fail_at:
            raise PowerCut
        return 1_000.0


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "fresh" / ".ratoon"


async def tenant_of(data_dir: Path, key: str | None) -> str:
    """Return the name of the tenant to which `key` belongs."""
    store = SqliteStore(data_dir / STATE_FILE)
    try:
        keyring = Keyring(store, load_secrets(data_dir).pepper, CLOCK)
        caller = await keyring.identify(key or "")
        return (await store.get(Tenant, caller.tenant_id)).name
    finally:
        await store.close()


async def tenant_names(data_dir: Path) -> list[str]:
    store = SqliteStore(data_dir / STATE_FILE)
    try:
        return [tenant.name for tenant in await store.every(Tenant)]
    finally:
        await store.close()


async def assert_whole(data_dir: Path, start: FirstStart) -> None:
    """Check that the installation in `data_dir` works with the keys of `start`."""
    assert await tenant_of(data_dir, start.demo_key) == "demo"
    assert await tenant_of(data_dir, start.demo2_key) == "demo2"
    assert await tenant_names(data_dir) == ["demo", "demo2"]
    pepper = load_secrets(data_dir).pepper
    assert read_keys(data_dir / KEYS_FILE) == {
        "RATOON_METRICS_KEY": metrics_key(pepper, start.admin_key),
        "RATOON_ADMIN_KEY": start.admin_key,
        "RATOON_DEMO_KEY": start.demo_key,
        "RATOON_DEMO2_KEY": start.demo2_key,
    }
    assert load_admin_key(data_dir) == start.admin_key
    hidden = [name for name in os.listdir(data_dir) if name.startswith(".")]
    assert hidden == []


async def test_an_older_file_gets_the_key_for_metrics_and_keeps_the_others(data_dir: Path) -> None:
    first = await ensure_first_start(data_dir, clock=CLOCK)
    path = data_dir / KEYS_FILE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "METRICS" not in line))
    assert "RATOON_METRICS_KEY" not in read_keys(path)
    await ensure_first_start(data_dir, clock=CLOCK)
    await assert_whole(data_dir, first)


async def test_another_operator_s_key_makes_another_for_metrics(data_dir: Path) -> None:
    await ensure_first_start(data_dir, clock=CLOCK)
    before = read_keys(data_dir / KEYS_FILE)["RATOON_METRICS_KEY"]
    await ensure_first_start(data_dir, clock=CLOCK, admin_key="sk-admin-another-one")
    after = read_keys(data_dir / KEYS_FILE)["RATOON_METRICS_KEY"]
    assert before != after
    await ensure_first_start(data_dir, clock=CLOCK)
    assert read_keys(data_dir / KEYS_FILE)["RATOON_METRICS_KEY"] == after


async def test_keys_of_an_older_file_are_read(data_dir: Path) -> None:
    first = await ensure_first_start(data_dir, clock=CLOCK)
    path = data_dir / KEYS_FILE
    assert path.read_text().startswith("export RATOON_ADMIN_KEY=")
    path.write_text(path.read_text().replace("export ", ""))
    await assert_whole(data_dir, first)


async def test_a_fresh_directory_gets_everything(data_dir: Path) -> None:
    start = await ensure_first_start(data_dir, clock=CLOCK)
    assert start.created
    assert start.keys_file == data_dir / KEYS_FILE
    await assert_whole(data_dir, start)
    assert len({start.admin_key, start.demo_key, start.demo2_key}) == 3


async def test_a_later_start_finds_the_same_and_makes_nothing(data_dir: Path) -> None:
    first = await ensure_first_start(data_dir, clock=CLOCK)
    second = await ensure_first_start(data_dir, clock=FailingClock(1))
    assert not second.created
    assert (second.admin_key, second.demo_key, second.demo2_key) == (
        first.admin_key,
        first.demo_key,
        first.demo2_key,
    )
    await assert_whole(data_dir, second)


async def test_who_works_as_demo_alone_has_nine_tenths_of_the_cache(data_dir: Path) -> None:
    await ensure_first_start(data_dir, clock=CLOCK)
    store = SqliteStore(data_dir / STATE_FILE)
    try:
        tenants = await store.every(Tenant)
    finally:
        await store.close()
    quotas = {tenant.name: tenant.cache for tenant in tenants}
    longest = {tenant.name: tenant.limits.max_request_tokens for tenant in tenants}
    assert longest == {"demo": None, "demo2": 32_768}
    assert quotas == {"demo": CacheQuota(), "demo2": CacheQuota(ceiling=0.1)}
    parts = partition({name: Quota(ceiling=one.ceiling) for name, one in quotas.items()})
    assert parts == pytest.approx({"demo": 0.9, "demo2": 0.1})


async def test_only_the_owner_gets_at_any_of_it(data_dir: Path) -> None:
    before = os.umask(0)
    try:
        await ensure_first_start(data_dir, clock=CLOCK)
    finally:
        os.umask(before)
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in data_dir.iterdir()}
    assert modes == dict.fromkeys((KEYS_FILE, SECRETS_FILE, STATE_FILE, "state.id"), 384)


async def test_a_shell_can_source_the_file(data_dir: Path) -> None:
    start = await ensure_first_start(data_dir, clock=CLOCK)
    script = f'. "{start.keys_file}" && echo "$RATOON_ADMIN_KEY $RATOON_DEMO_KEY $RATOON_DEMO2_KEY"'
    out = await asyncio.to_thread(
        subprocess.run, ["sh", "-euc", script], capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == [start.admin_key, start.demo_key, start.demo2_key]


async def test_the_admin_key_is_no_tenant_s_and_its_digest_needs_the_pepper(
    data_dir: Path,
) -> None:
    start = await ensure_first_start(data_dir, clock=CLOCK)
    assert start.admin_key.startswith("sk-admin-")
    assert len(start.admin_key) == len("sk-admin-") + 43
    pepper = load_secrets(data_dir).pepper
    digest = key_digest(pepper, start.admin_key)
    assert digest == key_digest(pepper, start.admin_key)
    assert digest != key_digest(b"other", start.admin_key)
    on_disk = b"".join(file.read_bytes() for file in data_dir.iterdir() if file.name != KEYS_FILE)
    for key in (start.admin_key, start.demo_key, start.demo2_key):
        assert key is not None
        assert key.encode() not in on_disk


async def test_nothing_that_prints_a_start_shows_a_key(data_dir: Path) -> None:
    start = await ensure_first_start(data_dir, clock=CLOCK)
    for key in (start.admin_key, start.demo_key, start.demo2_key):
        assert str(key) not in repr(start) + str(start)


# --- interrupted starts ---------------------------------------------------------------


async def test_a_start_cut_off_at_any_reading_of_the_clock_heals(tmp_path: Path) -> None:
    whole = FailingClock(fail_at=0)
    await ensure_first_start(tmp_path / "whole", clock=whole)
    assert whole.readings == 4  # two tenants and two keys each read the clock
    for fail_at in range(1, whole.readings + 1):
        data_dir = tmp_path / str(fail_at)
        with pytest.raises(PowerCut):
            await ensure_first_start(data_dir, clock=FailingClock(fail_at))
        assert not (data_dir / KEYS_FILE).exists()
        start = await ensure_first_start(data_dir, clock=CLOCK)
        assert start.created
        await assert_whole(data_dir, start)


async def test_a_start_cut_off_between_two_steps_heals(tmp_path: Path) -> None:
    async def directory(data_dir: Path) -> None:
        data_dir.mkdir(mode=0o700)

    async def with_secrets(data_dir: Path) -> None:
        await directory(data_dir)
        load_or_create_secrets(data_dir)

    async def with_empty_file(data_dir: Path) -> None:
        await with_secrets(data_dir)
        (data_dir / STATE_FILE).touch(0o600)

    async def with_store(data_dir: Path) -> None:
        await with_secrets(data_dir)
        await SqliteStore(data_dir / STATE_FILE).close()

    async def with_tenants(data_dir: Path) -> None:
        await with_secrets(data_dir)
        store = SqliteStore(data_dir / STATE_FILE)
        for number, name in enumerate(("demo", "demo2")):
            await store.create(Tenant.new(name, created_at=float(number)))
        await store.close()

    cuts = (directory, with_secrets, with_empty_file, with_store, with_tenants)
    for number, reach in enumerate(cuts):
        data_dir = tmp_path / str(number)
        await reach(data_dir)
        start = await ensure_first_start(data_dir, clock=CLOCK)
        assert start.created
        await assert_whole(data_dir, start)


async def test_a_file_half_written_beside_its_place_is_no_file(data_dir: Path) -> None:
    data_dir.mkdir(parents=True)
    for name in (KEYS_FILE, SECRETS_FILE):
        create_private(data_dir / f".{name}.0123", b"RATOON_ADM")
    start = await ensure_first_start(data_dir, clock=CLOCK)
    assert start.created
    assert await tenant_of(data_dir, start.demo_key) == "demo"


async def test_two_first_starts_at_once_agree(data_dir: Path) -> None:
    starts = await asyncio.gather(*(ensure_first_start(data_dir, clock=CLOCK) for _ in range(4)))
    assert [start.created for start in starts].count(True) == 1
    assert len({(s.admin_key, s.demo_key, s.demo2_key) for s in starts}) == 1
    await assert_whole(data_dir, starts[0])


# --- changes by an operator -----------------------------------------------------------


async def test_a_given_admin_key_wins_now_and_is_kept(data_dir: Path) -> None:
    first = await ensure_first_start(data_dir, clock=CLOCK, admin_key=GIVEN)
    assert first.admin_key == GIVEN == load_admin_key(data_dir)
    await assert_whole(data_dir, first)


async def test_a_given_admin_key_replaces_the_one_in_the_file(data_dir: Path) -> None:
    first = await ensure_first_start(data_dir, clock=CLOCK)
    second = await ensure_first_start(data_dir, clock=CLOCK, admin_key=GIVEN)
    assert not second.created
    assert second.admin_key == GIVEN == load_admin_key(data_dir) != first.admin_key
    assert second.demo_key == first.demo_key
    await assert_whole(data_dir, second)
    assert stat.S_IMODE((data_dir / KEYS_FILE).stat().st_mode) == 0o600
    third = await ensure_first_start(data_dir, clock=CLOCK)
    assert third.admin_key == GIVEN


@pytest.mark.parametrize(
    "bad", ["", "short", "x" * 257, "with a blank in it", "$(rm -rf ~)......", "a" * 20 + "\nB=c"]
)
async def test_a_bad_admin_key_is_refused_before_anything_is_made(data_dir: Path, bad: str) -> None:
    with pytest.raises(BadAdminKey) as refusal:
        await ensure_first_start(data_dir, clock=CLOCK, admin_key=bad)
    assert not data_dir.exists()
    assert not bad or bad not in str(refusal.value)


async def test_demo_keys_taken_out_stay_out(data_dir: Path) -> None:
    first = await ensure_first_start(data_dir, clock=CLOCK)
    path = data_dir / KEYS_FILE
    path.write_text(f"# mine\n\nexport RATOON_ADMIN_KEY={first.admin_key}\n")
    second = await ensure_first_start(data_dir, clock=CLOCK)
    assert (second.admin_key, second.demo_key, second.demo2_key) == (first.admin_key, None, None)


async def test_a_deleted_demo_tenant_does_not_come_back(data_dir: Path) -> None:
    await ensure_first_start(data_dir, clock=CLOCK)
    store = SqliteStore(data_dir / STATE_FILE)
    demo = (await store.every(Tenant))[0]
    await store.delete(Tenant, demo.id)
    await store.close()
    await ensure_first_start(data_dir, clock=CLOCK)
    assert await tenant_names(data_dir) == ["demo2"]


async def test_keys_open_to_others_are_refused(data_dir: Path) -> None:
    await ensure_first_start(data_dir, clock=CLOCK)
    (data_dir / KEYS_FILE).chmod(0o644)
    with pytest.raises(FileExposed, match=KEYS_FILE):
        await ensure_first_start(data_dir, clock=CLOCK)
    with pytest.raises(FileExposed, match=KEYS_FILE):
        load_admin_key(data_dir)


@pytest.mark.parametrize("content", [b"", b"RATOON_ADMIN_KEY=\n", b"\xff\xff", b"ADMIN=abc\n"])
async def test_a_damaged_keys_file_is_refused_and_left_alone(
    data_dir: Path, content: bytes
) -> None:
    await ensure_first_start(data_dir, clock=CLOCK)
    (data_dir / KEYS_FILE).write_bytes(content)
    with pytest.raises(PrivateFileDamaged, match=KEYS_FILE):
        await ensure_first_start(data_dir, clock=CLOCK, admin_key=GIVEN)
    assert (data_dir / KEYS_FILE).read_bytes() == content


async def test_no_new_secrets_are_made_over_an_old_installation(data_dir: Path) -> None:
    await ensure_first_start(data_dir, clock=CLOCK)
    (data_dir / SECRETS_FILE).unlink()
    with pytest.raises(FileMissing, match=SECRETS_FILE):
        await ensure_first_start(data_dir, clock=CLOCK)
    (data_dir / KEYS_FILE).unlink()
    with pytest.raises(FileMissing, match=SECRETS_FILE):
        await ensure_first_start(data_dir, clock=CLOCK)
    assert not (data_dir / SECRETS_FILE).exists()


async def test_lost_keys_are_replaced_and_the_old_ones_still_work(data_dir: Path) -> None:
    first = await ensure_first_start(data_dir, clock=CLOCK)
    (data_dir / KEYS_FILE).unlink()
    second = await ensure_first_start(data_dir, clock=CLOCK)
    assert second.created
    assert second.demo_key != first.demo_key
    await assert_whole(data_dir, second)
    assert await tenant_of(data_dir, first.demo_key) == "demo"


def test_there_is_no_admin_key_before_the_first_start(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match=KEYS_FILE):
        load_admin_key(tmp_path)
