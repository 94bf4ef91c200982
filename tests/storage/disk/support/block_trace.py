"""A process's writes to its file, in order, and the bytes that a disk may have after a power cut.

A disk has everything that was written before the last completed sync. Of later writes it may have
any part: sectors reach it in any order, or not at all.
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
    """A write of bytes at an offset."""

    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Length:
    """A new length of the file."""

    length: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync, after which everything written before is on the disk."""


Change = Write | Length
Entry = Change | Sync


def compiled_recorder(directory: Path) -> Path | None:
    """Compile the recorder library; return None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "write_recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(RECORDER)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return library


def parse(content: bytes) -> list[Entry]:
    """Return the entries of a recorded trace."""
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
    """Return how many of the first `end` entries are certainly on the disk."""
    return max((i + 1 for i in range(end) if isinstance(entries[i], Sync)), default=0)


def after_power_cut(entries: list[Entry], end: int, loss: Loss, random: Random) -> bytes:
    """Return the file's bytes after a power cut that follows entry number `end`.

    `loss` is the kind of loss of the writes that were not synced:

    none        no write is lost
    torn        the last write is cut off
    unordered   some writes are lost, whatever their order
    sectors     some sectors of each write are lost
    lying       some writes are lost, including some from before the last sync
    """
    sure = 0 if loss == "lying" else last_sync(entries, end)
    changes = [entry for entry in entries[:sure] if not isinstance(entry, Sync)]
    loose = [entry for entry in entries[sure:end] if not isinstance(entry, Sync)]
    return applied([*changes, *_left_of(loose, loss, random)])


def applied(changes: Iterable[Change]) -> bytes:
    """Return the file's bytes after these entries."""
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
    """Split a write into the sectors that a disk writes atomically."""
    if isinstance(change, Length):
        return [change]
    end = change.offset + len(change.content)
    edges = [change.offset, *range(change.offset // SECTOR * SECTOR + SECTOR, end, SECTOR), end]
    return [
        Write(first, change.content[first - change.offset : past - change.offset])
        for first, past in pairwise(edges)
    ]
