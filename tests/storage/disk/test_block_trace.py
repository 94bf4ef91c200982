"""A power cut at any point of a spill: the disk's file opens, and has a committed state.

The writes of a real disk process are recorded, and the file is rebuilt as a disk may have it after
some of these writes. A separate process opens each file. Its contents must be those of a commit, or
of the commit before it, not just free of wrong blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

import lmdb
import pytest
import torch

from storage.disk.stats import DiskState
from storage.disk.tier import DiskTier
from storage.disk.wire import DiskOutcome, Segment
from storage.move import Tier
from storage.pools.host_pool import HostPool
from storage.tier_mover import TierMover, block_bytes_of
from tests.examples import in_the_zoo
from tests.storage.disk.support.block_trace import (
    Entry,
    Loss,
    Write,
    after_power_cut,
    compiled_recorder,
    last_sync,
    parse,
)
from tests.storage.disk.support.opener import Found, Holds, Opener
from tests.storage.scene import (
    BLOCK_BYTES,
    CPU,
    content,
    disk_config,
    filled_pool,
    finish,
    plan,
    record,
)

SLOTS = 40
ROUNDS = 60
MOST_AT_ONCE = 8
METAS = 2 * 4096  # LMDB's two meta pages, whose writes commit


@dataclass(frozen=True, slots=True)
class Round:
    """The blocks that the engine knew to be on the disk when all its requests were done."""

    entries: int  # number of entries of the trace at that time
    holds: Holds


@dataclass(frozen=True)
class Spill:
    """A recorded spill."""

    directory: Path  # directory that also has the secret which sealed the file's records
    opener: Opener
    entries: list[Entry]
    rounds: list[Round]

    @cached_property
    def commits(self) -> list[tuple[int, Holds]]:
        """Return, for each commit, the number of entries up to it, and the contents then."""
        ends = [i + 1 for i, entry in enumerate(self.entries) if _is_commit(entry)]
        return [(end, self.opened(self.after(end, "none", Random(0))).holds) for end in ends]

    def after(self, end: int, loss: Loss, random: Random) -> bytes:
        """Return the file's bytes after a power cut."""
        return after_power_cut(self.entries, end, loss, random)

    def may_hold(self, end: int) -> list[Holds]:
        """List the possible contents after `end` entries, the last certain commit first."""
        sure = last_sync(self.entries, end)
        certain = [holds for at, holds in self.commits if at <= sure]
        return certain[-1:] + [holds for at, holds in self.commits if sure < at <= end]

    def opened(self, file: bytes) -> Found:
        """Let a process open this file and read every record; return its contents."""
        self.put(file)
        found = self.opener.open(keep=True)
        if found.ended:
            assert self.opener.open(keep=False) == Found({}, set_aside=True)
        return found

    def put(self, file: bytes) -> None:
        """Replace the disk's file by these bytes."""
        blocks = self.directory / "blocks"
        blocks.mkdir(exist_ok=True)
        (blocks / "lock.mdb").unlink(missing_ok=True)
        (blocks / "data.mdb").write_bytes(file)


def _is_commit(entry: Entry) -> bool:
    return isinstance(entry, Write) and entry.offset < METAS and len(entry.content) < METAS // 2


@pytest.fixture(scope="module")
def spill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spill]:
    scratch = tmp_path_factory.mktemp("trace")
    library = compiled_recorder(scratch)
    if library is None:
        pytest.skip("no C compiler here: writes cannot be recorded")
    trace, directory = scratch / "writes", scratch / "disk"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LD_PRELOAD", str(library))
        patched.setenv("RATOON_WRITE_TRACE", str(trace))
        rounds = _spill(directory, trace)
    opener = Opener(directory)
    yield Spill(directory, opener, parse(trace.read_bytes()), rounds)
    opener.close()


def _spill(directory: Path, trace: Path) -> list[Round]:
    """Write, overwrite and erase blocks in rounds; at the end of a round nothing is pending."""
    random = Random(15)
    holds: Holds = {}
    rounds: list[Round] = []
    with _open_tier(directory) as (disk, host):
        number = 0
        for _ in range(ROUNDS):
            slots = random.sample(range(SLOTS), random.randint(1, MOST_AT_ONCE))
            erased = slots[: random.choice([0, 0, 1, 2])]
            disk.erase(erased)
            for slot in erased:
                holds.pop(slot, None)
            for place, slot in enumerate(slots[len(erased) :]):
                number += 1
                host.tensor[place] = content(number)
                disk.write(slot, record(number), Segment.HOST, place)
                holds[slot] = number
            _await_ends(disk, len(slots) - len(erased))
            if len(slots) > len(erased):  # the end of an erasure is not reported
                rounds.append(Round(len(parse(trace.read_bytes())), dict(holds)))
    return rounds


def _await_ends(disk: DiskTier, left: int) -> None:
    while left:
        ended = disk.poll()
        assert all(end.outcome is DiskOutcome.DONE for end in ended)
        left -= len(ended)
        disk.wait(0.05)


@contextmanager
def _open_tier(directory: Path) -> Iterator[tuple[DiskTier, HostPool]]:
    host = HostPool(MOST_AT_ONCE, BLOCK_BYTES, CPU)
    disk = DiskTier(disk_config(directory), host)
    yield disk, host
    disk.close()
    host.close()


def test_with_all_writes_there_is_all_that_the_engine_was_told_is_written(spill: Spill) -> None:
    """Cut after all writes (positive control): the file has every block that the engine knew to be
    written.
    """
    last = spill.opened(spill.after(len(spill.entries), "none", Random(0)))
    assert last == Found(spill.rounds[-1].holds)
    assert len(last.holds) > SLOTS // 2
    assert len(spill.commits) > len(spill.rounds) > ROUNDS // 2
    for ended in spill.rounds:
        committed = [holds for at, holds in spill.commits if at <= ended.entries]
        assert committed[-1] == ended.holds


# A torn write loses data at one point of eight, other kinds at half of the points.
@pytest.mark.parametrize(
    ("loss", "points"),
    [
        *(("none", 15), ("torn", 80), ("unordered", 25), ("sectors", 25)),
        *in_the_zoo(*((loss, 100) for loss in ("none", "torn", "unordered", "sectors"))),
    ],
)
def test_whatever_is_lost_since_the_last_sync_the_rest_is_whole(
    spill: Spill, loss: Loss, points: int
) -> None:
    """Lose writes since the last sync, by any kind of loss: each file opens, and none is set
    aside.
    """
    random = Random(loss)
    began = spill.rounds[0].entries
    fell_back = 0
    for end in random.sample(range(began, len(spill.entries) + 1), points):
        found = spill.opened(spill.after(end, loss, random))
        may_hold = spill.may_hold(end)
        assert found.holds in may_hold, (end, loss)
        assert not found.set_aside
        assert not found.ended
        fell_back += len(may_hold) > 1 and found.holds != may_hold[-1]
    assert (fell_back > 0) == (loss != "none")  # positive control: unsynced writes can be lost


def test_at_every_point_of_the_very_first_writes_it_opens(spill: Spill) -> None:
    """Cut at every point of the first writes.

    A new file without blocks may be set aside, which loses nothing.
    """
    random = Random(3)
    for end in range(spill.rounds[0].entries):
        for loss in ("none", "torn", "sectors"):
            found = spill.opened(spill.after(end, loss, random))
            assert not found.ended
            assert found.holds in [{}, *spill.may_hold(end)]


@pytest.mark.parametrize("points", [40, *in_the_zoo(120)])
def test_a_disk_that_lies_about_syncs_loses_blocks_and_brings_no_wrong_one(
    spill: Spill, points: int
) -> None:
    """Lose synced writes: `reads_right` and the seal detect it, and return no wrong block.

    The test also shows that lost writes are noticed.
    """
    random = Random(4)
    ends = random.sample(range(spill.rounds[0].entries, len(spill.entries) + 1), points)
    harmed = 0
    for end in ends:
        found = spill.opened(spill.after(end, "lying", random))
        known = [block for _, holds in spill.commits for block in holds.items()]
        assert set(found.holds.items()) <= set(known)
        harmed += found.holds not in spill.may_hold(end)
    assert harmed > len(ends) // 4


def test_the_tier_itself_opens_such_files_and_serves(spill: Spill) -> None:
    """Let the tier itself open files after a power cut, each in a new disk process; read every
    block.
    """
    random = Random(5)
    losses: list[Loss] = ["torn", "unordered", "sectors", "lying", "lying", "lying"]
    for loss in losses:
        end = random.randrange(len(spill.entries) // 2, len(spill.entries))
        may_hold = spill.may_hold(end)
        spill.put(spill.after(end, loss, random))
        pool = filled_pool(SLOTS)
        with _open_tier(spill.directory) as (disk, host):
            mover = TierMover(pool, host, disk)
            listed = {slot: known.hits for slot, known in disk.scan()}
            asked = plan(Tier.DISK, Tier.DEVICE, [(s, s) for s in listed], list(listed.values()))
            mover.start(asked)
            settled = finish(mover, disk)
            for move in settled.done:
                there = block_bytes_of(pool)[move.target]
                assert torch.equal(there, content(listed[move.source])), "a wrong byte"
            if loss != "lying":
                assert listed in may_hold
                assert len(settled.done) == len(listed) > 0
            assert _writes(mover, disk) or (loss == "lying" and _writes(mover, disk))
            mover.close()


def _writes(mover: TierMover, disk: DiskTier) -> bool:
    """Return whether a block can be written once the tier is up. A bad file may kill the disk
    process.
    """
    while disk.state is not DiskState.UP:
        disk.poll()
        disk.wait(0.02)
    mover.start(plan(Tier.DEVICE, Tier.DISK, [(0, 0)], [1]))
    return bool(finish(mover, disk).done)


def test_a_process_that_ends_at_a_file_is_told_from_one_that_opens_it(spill: Spill) -> None:
    """Open a file that kills its process (positive control of `ended`): a key that is no slot,
    which only a scan reads.
    """
    found = spill.opened(spill.after(len(spill.entries), "none", Random(0)))
    assert not found.ended
    assert 1 in found.holds
    environment = lmdb.open(str(spill.directory / "blocks"), max_dbs=4)
    with environment.begin(db=environment.open_db(b"headers"), write=True) as transaction:
        transaction.put(b"\0\0\0\1 and more", b"no header")
    environment.close()
    assert spill.opener.open(keep=True) == Found({}, ended=True)
    assert spill.opener.open(keep=False) == Found({}, set_aside=True)
