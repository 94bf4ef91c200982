"""A process that opens the disk's directory and reports its contents; a bad file may kill it.

It opens and reads the directory as the disk process does.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from storage.disk.file.records import DiskRecords, ScanRoom
from storage.disk.file.seal import RecordSeal
from storage.disk.opening import open_directory
from storage.disk.wire import Open, SharedSegment
from storage.errors import FileDamaged
from tests.storage.disk.support.bench import reads_right
from tests.storage.scene import BLOCK_BYTES, FINGERPRINT, disk_config

OPENED_WITHIN_S = 30.0
_DAMAGED = 3  # exit status of a child that found a damaged file

Holds = dict[int, int]  # block numbers by slot


@dataclass(frozen=True, slots=True)
class Found:
    """The contents that were found. `ended`: the file killed the process, which must not happen."""

    holds: Holds
    set_aside: bool = False
    ended: bool = False


class Opener:
    """A series of child processes, each of which serves until it dies. One thread must own it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._child: int | None = None
        self._socket: socket.socket | None = None

    def open(self, *, keep: bool) -> Found:
        """Open the directory in a child that reads every record; return its contents."""
        if self._socket is None:
            self._fork()
        assert self._socket is not None
        assert self._child is not None
        self._socket.sendall(b"k" if keep else b"n")
        try:
            said = self._socket.recv(1 << 16)
        except TimeoutError:
            os.kill(self._child, signal.SIGKILL)
            raise AssertionError("it hangs") from None
        if said:
            return msgspec.msgpack.decode(said, type=Found)
        self._socket.close()
        self._socket = None
        _, status = os.waitpid(self._child, 0)
        died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        assert died_of in (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT) or (
            os.WIFEXITED(status) and os.WEXITSTATUS(status) == _DAMAGED
        ), status
        return Found({}, ended=True)

    def close(self) -> None:
        """End the child."""
        if self._socket is not None and self._child is not None:
            self._socket.close()
            os.waitpid(self._child, 0)
            self._socket = None

    def _fork(self) -> None:
        ours, its_own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._child = os.fork()
        if self._child == 0:
            ours.close()
            _serve(its_own, self._directory)
        its_own.close()
        ours.settimeout(OPENED_WITHIN_S)
        self._socket = ours


def _serve(channel: socket.socket, directory: Path) -> None:
    """Open the directory on each request; never return."""
    faulthandler.disable()  # the child's death is expected, so it needs no traceback
    status = 1
    try:
        while asked := channel.recv(1):
            channel.sendall(msgspec.msgpack.encode(_look(directory, keep=asked == b"k")))
        status = 0
    except FileDamaged:
        status = _DAMAGED
    finally:
        os._exit(status)


def _look(directory: Path, *, keep: bool) -> Found:
    opened = open_directory(_wish(directory, keep=keep))
    config = disk_config(directory)
    room = ScanRoom(opened.head_room, config.num_blocks, BLOCK_BYTES, config.record_bytes)
    records = DiskRecords(opened.file, RecordSeal(opened.keys, FINGERPRINT, BLOCK_BYTES), room)
    holds: Holds = {}
    first: int | None = 0
    while first is not None:
        entries, _, first = records.scan(first)
        for slot, known in entries:
            if reads_right(records, slot, known, known.hits):
                holds[slot] = known.hits
    opened.file.close()
    os.close(opened.lock)
    return Found(holds, set_aside=opened.set_aside)


def _wish(directory: Path, *, keep: bool) -> Open:
    """Return the tier's request to open the directory; shared memory is not used here."""
    config = disk_config(directory)
    return Open(config, config.num_blocks, keep, staging=SharedSegment(0, 1), host=None)
