"""Databases that are damaged, deleted, replaced or full are detected, before and after opening."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.errors import StateDiskFull, StateLost
from gateway.state.faults import Status
from gateway.state.identity import ExpectedState, WrongState
from gateway.state.reserved_room import BALLAST_BYTES, BALLAST_FILE, ReservedRoom
from gateway.state.sqlite.database import ROOM_BYTES, DatabaseFile
from gateway.state.sqlite.file import DatabaseFull
from tests.doubles.disk.damage import fill_up, overwrite, small_disk

ROWS = 3000


def prepare(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, text)")


def opened(
    path: Path, expected: ExpectedState | None = None, *, durable: bool = True
) -> DatabaseFile:
    expected = expected or ExpectedState("state", path.name)
    return DatabaseFile(path, expected, prepare, busy_s=1.0, durable=durable, check_every_s=0.0)


def add(file: DatabaseFile, count: int = 1) -> None:
    rows = [("x" * 100,)] * count
    file.run(lambda c: c.executemany("INSERT INTO rows (text) VALUES (?)", rows))


def count(file: DatabaseFile) -> int:
    found: int = file.run(lambda c: c.execute("SELECT count(text) FROM rows").fetchone())[0]
    return found


def pragma(file: DatabaseFile, name: str) -> int:
    found: int = file.run(lambda c: c.execute(f"PRAGMA {name}").fetchone())[0]
    return found


def status(file: DatabaseFile) -> Status | None:
    return None if file.fault is None else file.fault.status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def file(path: Path) -> Iterator[DatabaseFile]:
    file = opened(path)
    file.run(lambda c: c.execute("BEGIN"))
    add(file, ROWS)
    file.run(lambda c: c.execute("COMMIT"))
    file.run(lambda c: c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
    yield file
    file.close()


def test_one_that_is_well_stays_so(file: DatabaseFile) -> None:
    for _ in range(3):
        file.look()
        assert file.fault is None
    assert count(file) == ROWS


@pytest.mark.parametrize("seed", [1, 2])
def test_damage_under_an_open_file_is_found_and_nothing_is_read_any_more(
    path: Path, file: DatabaseFile, seed: int
) -> None:
    overwrite(path, seed)
    file.look()
    assert status(file) == "state_damaged"
    with pytest.raises(StateLost) as refused:
        count(file)
    assert refused.value.code == "state_damaged"
    assert file.fault is not None
    assert "--new-state" in file.fault.reason


def test_damage_that_passes_is_over(path: Path, file: DatabaseFile) -> None:
    whole = path.read_bytes()
    overwrite(path, 1)
    file.look()
    assert status(file) == "state_damaged"
    path.write_bytes(whole)
    file.look()
    assert status(file) is None
    assert count(file) == ROWS


@pytest.mark.parametrize("seed", [1, 2])
def test_a_damaged_file_opens_and_refuses_all(path: Path, file: DatabaseFile, seed: int) -> None:
    file.close()
    overwrite(path, seed)
    before = path.read_bytes()
    again = opened(path)
    assert status(again) == "state_damaged"
    again.look()
    with pytest.raises(StateLost):
        add(again)
    again.close()
    assert path.read_bytes() == before


def test_a_truncated_file_is_damaged(path: Path, file: DatabaseFile) -> None:
    file.close()
    os.truncate(path, 8192)
    again = opened(path)
    assert status(again) == "state_damaged"
    again.close()


@pytest.mark.parametrize("damaged", [b"\xff", b"{", b"[" * 200_000])
def test_a_record_that_cannot_be_read_turns_it_red_for_good(
    file: DatabaseFile, damaged: bytes
) -> None:
    def bad(_: sqlite3.Connection) -> object:
        return msgspec.json.decode(damaged)

    with pytest.raises(StateLost):
        file.run(bad)
    file.look()
    assert status(file) == "state_damaged"


def unlinked(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def exchanged(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


@pytest.mark.parametrize("harm", [unlinked, emptied, exchanged])
def test_a_file_that_goes_while_it_is_open_is_missing(
    path: Path, file: DatabaseFile, harm: Callable[[Path], None]
) -> None:
    harm(path)
    file.look()
    assert status(file) == "state_missing"
    with pytest.raises(StateLost):
        add(file)


@pytest.mark.parametrize("harm", [unlinked, emptied])
def test_one_that_was_there_does_not_begin_anew(
    path: Path, file: DatabaseFile, harm: Callable[[Path], None]
) -> None:
    known = ExpectedState("state", path.name, file.id, was_there=True)
    file.close()
    opened(path, known).close()  # positive control
    harm(path)
    before = path.exists()
    with pytest.raises(WrongState, match=r"state\.sqlite is empty or gone"):
        opened(path, known)
    assert path.exists() == before
    opened(path).close()  # accepted, since no installation id is expected


def test_one_of_another_installation_is_refused(path: Path, file: DatabaseFile) -> None:
    known = ExpectedState("state", path.name, file.id, was_there=True)
    other = path.with_name("other.sqlite")
    opened(other).close()
    file.close()
    other.rename(path)
    with pytest.raises(WrongState, match="is not the one that was here"):
        opened(path, known)


def test_an_older_copy_of_the_same_is_welcome(path: Path, file: DatabaseFile) -> None:
    known = ExpectedState("state", path.name, file.id, was_there=True)
    backup = path.with_suffix(".backup")
    shutil.copy(path, backup)
    add(file)
    file.close()
    backup.rename(path)
    restored = opened(path, known)
    assert count(restored) == ROWS
    restored.close()


def test_without_its_wal_it_is_an_older_copy(path: Path, file: DatabaseFile) -> None:
    known = ExpectedState("state", path.name, file.id, was_there=True)
    add(file)
    killed = path.with_name("killed.sqlite")
    shutil.copy(path, killed)  # the database as after a crash that lost the -wal file
    again = opened(killed, known)
    assert count(again) == ROWS
    again.close()


def test_a_new_file_that_lost_its_wal_is_empty(tmp_path: Path) -> None:
    new = tmp_path / "new.sqlite"
    file = opened(new)
    shutil.copy(new, tmp_path / "killed.sqlite")
    known = ExpectedState("state", "killed.sqlite", file.id, was_there=True)
    file.close()
    with pytest.raises(WrongState):
        opened(tmp_path / "killed.sqlite", known)


@pytest.mark.parametrize("durable", [True, False])
def test_a_database_file_has_room_of_its_own(path: Path, durable: bool) -> None:
    file = opened(path, durable=durable)
    file.look()
    free, size = pragma(file, "freelist_count"), pragma(file, "page_size")
    assert free * size >= ROOM_BYTES
    assert path.with_name(path.name + "-wal").stat().st_size >= ROOM_BYTES
    file.close()


# --- on a full disk -------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "disk") as directory:
            yield directory
    except PermissionError as error:
        pytest.skip(f"no file system of one's own: {error}")


def test_with_a_full_disk_much_is_stored_without_touching_the_ballast(disk: Path) -> None:
    room = ReservedRoom(disk)
    room.look()
    file = opened(disk / "state.sqlite")
    add(file, 100)
    file.look()
    fill_up(disk)
    for _ in range(2000):
        file.run(lambda c: c.execute("UPDATE rows SET text = text || 'y' WHERE number = 7"))
    for _ in range(20):
        add(file, 100)
    assert (disk / BALLAST_FILE).stat().st_size == BALLAST_BYTES
    assert count(file) == 2100
    file.close()


def test_a_full_disk_uses_up_the_ballast_and_then_refuses_writes(disk: Path) -> None:
    room = ReservedRoom(disk)
    room.look()
    file = opened(disk / "state.sqlite")
    file.look()
    fill_up(disk)

    def until_full() -> None:
        for _ in range(20_000):
            add(file, 10)

    with pytest.raises(StateDiskFull):
        until_full()
    assert (disk / BALLAST_FILE).stat().st_size < BALLAST_BYTES
    stored = count(file)
    assert stored > 10_000
    assert file.fault is None, "a full disk is no damage"
    file.close()
    again = opened(disk / "state.sqlite")  # the next start
    assert count(again) == stored
    again.close()


def test_without_ballast_a_start_on_a_full_disk_says_so(disk: Path) -> None:
    opened(disk / "state.sqlite").close()
    fill_up(disk)
    with pytest.raises(DatabaseFull):
        opened(disk / "state.sqlite")


class GrudgingRoom(ReservedRoom):
    """A reserve that frees space only once, as if on a full disk."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.given_up = 0

    def give_up(self, *, keep: int = 0) -> bool:
        self.given_up += 1
        return self.given_up == 1


def full(_: sqlite3.Connection) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def test_a_write_is_tried_again_once_room_was_given_up(path: Path) -> None:
    room = GrudgingRoom(path.parent)
    file = DatabaseFile(path, ExpectedState("state", path.name), prepare, room, busy_s=1.0)
    tries = 0

    def work(connection: sqlite3.Connection) -> None:
        nonlocal tries
        tries += 1
        if room.given_up == 0:
            full(connection)

    file.run(work)
    assert (tries, room.given_up) == (3, 1)
    with pytest.raises(StateDiskFull):
        file.run(full)
    assert room.given_up == 2
    file.close()
