"""What a process wrote to its file, in order, and what a disk may have of it after a power cut.

A disk has all that was written before the last sync that ended. Of what was written since it may
have any part: sectors reach it in any order, or not at all.

Knows: writes, syncs, sectors. Does not know: LMDB, or what is in a block.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

RECORDER = Path(__file__).with_name("write_recorder.c")
SECTOR = 512
_HEAD = struct.Struct("=QQQ")
_WRITE, _LENGTH, _SYNC = 1, 2, 3

Loss = Literal["none", "torn", "unordered", "sectors", "lying"]


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at an offset."""

    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Length:
    """A new length of the file."""

    length: int


@dataclass(frozen=True, slots=True)
class Sync:
    """All that was written before is on the disk."""


Change = Write | Length
Entry = Change | Sync


def compiled_recorder(directory: Path) -> Path | None:
    """The recorder, to be preloaded; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "write_recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(RECORDER)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return library


def parse(content: bytes) -> list[Entry]:
    """The entries of a captured trace."""
    entries: list[Entry] = []
    at = 0
    while at < len(content):
        kind, offset, length = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        if kind == _WRITE:
            entries.append(Write(offset, content[at : at + length]))
            at += length
        else:
            assert kind in (_LENGTH, _SYNC)
            entries.append(Length(offset) if kind == _LENGTH else Sync())
    assert at == len(content)
    return entries


def last_sync(entries: list[Entry], end: int) -> int:
    """How many of the first `end` entries are on the disk for sure."""
    return max((i + 1 for i in range(end) if isinstance(entries[i], Sync)), default=0)


def after_power_cut(entries: list[Entry], end: int, loss: Loss, random: Random) -> bytes:
    """The file, had the power gone after `end` entries; of those that are not synced:

    none        is lost
    torn        the last is cut off somewhere
    unordered   some are lost, wherever they come
    sectors     some sectors of each are lost
    lying       some are lost, and some of those before the last sync as well
    """
    sure = 0 if loss == "lying" else last_sync(entries, end)
    changes = [entry for entry in entries[:sure] if not isinstance(entry, Sync)]
    loose = [entry for entry in entries[sure:end] if not isinstance(entry, Sync)]
    return applied([*changes, *_left_of(loose, loss, random)])


def applied(changes: Iterable[Change]) -> bytes:
    """The file after these."""
    file = bytearray()
    for change in changes:
        if isinstance(change, Length):
            file = file[: change.length].ljust(change.length, b"\0")
            continue
        end = change.offset + len(change.content)
        if len(file) < end:
            file.extend(bytes(end - len(file)))
        file[change.offset : end] = change.content
    return bytes(file)


def _left_of(loose: list[Change], loss: Loss, random: Random) -> list[Change]:
    if loss == "none" or not loose:
        return loose
    if loss == "torn":
        *whole, last = loose
        return [*whole, *_cut(last, random)]
    if loss == "unordered":
        return [change for change in loose if random.random() < 0.5]
    if loss == "sectors":
        return [part for change in loose for part in _sectors(change) if random.random() < 0.5]
    return [change for change in loose if random.random() < 0.98]


def _cut(change: Change, random: Random) -> list[Change]:
    if isinstance(change, Length):
        return []
    return [Write(change.offset, change.content[: random.randrange(len(change.content))])]


def _sectors(change: Change) -> list[Change]:
    """A write as what a disk does at once."""
    if isinstance(change, Length):
        return [change]
    end = change.offset + len(change.content)
    edges = [change.offset, *range(change.offset // SECTOR * SECTOR + SECTOR, end, SECTOR), end]
    return [
        Write(first, change.content[first - change.offset : past - change.offset])
        for first, past in pairwise(edges)
    ]
