"""Write jobs are done in order, also after one failure at any position. A full file fails writes
only.
"""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from storage.disk.file.data_keys import DataKeys
from storage.disk.file.records import DiskRecords
from storage.disk.file.seal import RecordSeal
from storage.disk.wire import (
    CloseFile,
    DiskEnded,
    DiskOutcome,
    Erase,
    Forget,
    Forgot,
    Note,
    Reply,
    Segment,
    Write,
)
from storage.disk.writing import Job, Writing
from storage.errors import FileDamaged, FileFull
from tests.storage.disk.support.bench import Bench, numbered_block
from tests.storage.disk.support.counted_disk import CountedDisk
from tests.storage.fault_plan import FaultPlan, FaultyFile
from tests.storage.scene import BLOCK_BYTES, FINGERPRINT, record


def write(slot: int, number: int) -> Write:
    return Write(1000 * slot + number, slot, Segment.HOST, number, record(number))


def do(
    records: DiskRecords,
    jobs: list[Job],
    at_once: int = 3,
    note: Callable[[Iterable[str]], None] = lambda _: None,
) -> list[Reply]:
    """Do `jobs`, then stop the writer; return the replies."""
    replies: list[Reply] = []
    writing = Writing(records, numbered_block, replies.append, lambda: None, at_once, note)
    for job in [*jobs, CloseFile()]:
        writing.queue.put(job)
    writing.run()
    return replies


def outcomes(replies: list[Reply]) -> dict[int, DiskOutcome]:
    ends = [reply for reply in replies if isinstance(reply, DiskEnded)]
    assert max(Counter(end.ticket for end in ends).values(), default=1) == 1
    return {end.ticket: end.outcome for end in ends}


def test_writes_erases_and_forgets_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    jobs = [write(i, i) for i in range(8)]
    replies = do(bench.records, [*jobs, Erase([1, 2]), write(2, 12), Forget("nobody")])
    assert set(outcomes(replies).values()) == {DiskOutcome.DONE}
    assert replies[-1] == Forgot("nobody")
    assert dict(bench.records.scan(0).entries).keys() == {0, 2, 3, 4, 5, 6, 7}
    assert bench.reads_right(2, 12)
    bench.close()


@pytest.mark.parametrize("name", ["put", "delete", "commit"])
def test_a_single_failure_costs_nothing_for_it_is_tried_again(tmp_path: Path, name: str) -> None:
    """Retry after a single failure, at no cost.

    Every call of a trace fails once, in turn. A batch without room is written in parts.
    """
    jobs: list[Job] = [write(i, i) for i in range(7)]
    jobs += [Erase([0, 1, 2]), write(1, 11), write(8, 8), Erase([4]), write(4, 14)]
    for nth in itertools.count(1):
        directory = tmp_path / str(nth)
        directory.mkdir()
        bench = Bench(directory)
        faults = FaultPlan(name, nth, FileFull("planned"))
        replies = do(bench.over(FaultyFile(bench.file, faults)), jobs)
        assert set(outcomes(replies).values()) == {DiskOutcome.DONE}
        bench.close()
        again = Bench(directory)
        found = {slot: kept.hits for slot, kept in again.records.scan(0).entries}
        assert found == {1: 11, 3: 3, 4: 14, 5: 5, 6: 6, 8: 8}
        assert all(again.reads_right(slot, number) for slot, number in found.items())
        again.close()
        if not faults.has_struck:
            break
    assert nth > 4


def test_a_damaged_file_ends_the_thread(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    faults = FaultPlan("put", 2, FileDamaged("planned"))
    with pytest.raises(FileDamaged, match="planned"):
        do(bench.over(FaultyFile(bench.file, faults)), [write(i, i) for i in range(3)])
    bench.close()


def test_a_full_file_fails_writes_alone_and_erasing_makes_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=1 << 20)
    ends = outcomes(do(bench.records, [write(i, i) for i in range(400)], at_once=10))
    done = [ticket for ticket, outcome in ends.items() if outcome is DiskOutcome.DONE]
    assert len(ends) == 400
    assert 100 < len(done) < 300
    assert all(bench.reads_right(i, i) for i in range(len(done)))
    again = outcomes(do(bench.records, [Erase(list(range(300))), write(0, 500)]))
    assert list(again.values()) == [DiskOutcome.DONE]
    assert [slot for slot, _ in bench.records.scan(0).entries] == [0]
    bench.close()


def test_forgetting_in_the_clear_erases_and_tells_when_all_is_erased(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for slot in range(20):
        bench.write(slot, slot, owner=f"flow {slot % 2}")
    faults = FaultPlan("delete", 1, FileFull("planned"))
    replies = do(bench.over(FaultyFile(bench.file, faults)), [Forget("flow 0")])
    assert replies == [Forgot("flow 0")]
    assert [slot for slot, _ in bench.records.scan(0).entries] == list(range(1, 20, 2))
    bench.close()


def test_a_flush_is_noted_once_all_is_erased_and_not_where_that_fails(tmp_path: Path) -> None:
    bench, noted, seen = Bench(tmp_path), NotedOnAFullDisk(), []
    for slot in range(4):
        bench.write(slot, slot)

    def note(flushes: Iterable[str]) -> None:
        seen.append([slot for slot, _ in bench.records.scan(0).entries])
        noted.add(flushes)

    do(bench.records, [Erase([0, 1]), Note(["a", "b"]), Note(["c"])], note=note)
    assert seen == [[2, 3]] * 2, "the first time fails"
    assert noted.done == ["a", "b", "c"]
    faults = Lasting("delete", 1, FileFull("planned"))
    do(bench.over(FaultyFile(bench.file, faults)), [Erase([2]), Note(["d"])], note=note)
    assert noted.done == ["a", "b", "c"], "what was to be erased is still there"
    bench.close()


class Lasting(FaultPlan):
    """A plan in which every call fails."""

    def call(self, name: str) -> None:
        self.calls[name] += 1
        if name == self._name:
            raise self._error


class NotedOnAFullDisk:
    """A store of flush ids that has no room at first."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._failures = 1

    def add(self, flushes: Iterable[str]) -> None:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.ENOSPC, "planned")
        self.done += flushes


class KeysOnAFullDisk(DataKeys):
    """Keys that cannot be erased at first, since there is no room to rewrite their file."""

    failures = 2

    def forget(self, owner: str) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, "planned")
        super().forget(owner)


def test_a_key_that_a_full_disk_kept_from_being_erased_is_erased_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path, encrypt=True)
    bench.write(1, 1, owner="gone")
    keys = KeysOnAFullDisk(tmp_path / "keys")
    records = DiskRecords(bench.file, RecordSeal(keys, FINGERPRINT, BLOCK_BYTES), bench.room)
    replies = do(records, [Forget("gone"), Forget("nobody"), Forget("nobody")])
    assert replies.count(Forgot("gone")) == 1
    assert not keys.failures
    assert b"gone" not in (tmp_path / "keys").read_bytes()
    bench.close()


def test_a_full_disk_is_known_until_a_write_succeeds(tmp_path: Path) -> None:
    """Remember a full disk until a write succeeds; erasures continue, but tell nothing about
    writes.
    """
    disk = CountedDisk(10 << 20)
    bench = Bench(tmp_path, max_bytes=1 << 20, disk_use=disk.use)
    replies: list[Reply] = []
    known: list[bool] = []

    def tend() -> None:
        known.append(writing.met_full_disk)
        disk.others = {1: 10 << 20, 3: 0}.get(len(known), disk.others)

    writing = Writing(bench.records, numbered_block, replies.append, tend, 1, lambda _: None)
    for job in (write(0, 0), write(1, 1), Erase([0]), Forget("nobody"), write(2, 2), CloseFile()):
        writing.queue.put(job)
    writing.run()
    assert [end is DiskOutcome.DONE for end in outcomes(replies).values()] == [True, False, True]
    assert (known, writing.refused) == ([False, True, True, False, False], 1)
    assert [slot for slot, _ in bench.records.scan(0).entries] == [2]
    bench.close()
