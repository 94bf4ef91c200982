"""The disk's process: opens the file, then answers the engine until it is gone.

    main thread       takes commands, scans
    one thread        writes, erases, forgets (`writing`), in the order they came
    two threads       read: so a read waits for no write, and not for one other slow read

An error of the file ends the process at once: the engine starts another one, with a new file. When
the engine is gone, the process ends too, after it has written what was queued.

Knows: threads and messages. Does not know: what the engine does with an answer.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from storage.disk.memories import Memories
from storage.disk.opening import OpenedFile, open_directory, remove_quarantine
from storage.disk.records import Records
from storage.disk.room import Room
from storage.disk.seal import Seal
from storage.disk.wire import (
    Channel,
    Close,
    Ended,
    Erase,
    FileStats,
    Forget,
    Open,
    Opened,
    Outcome,
    Read,
    Refusal,
    Refused,
    Reply,
    Scan,
    Scanned,
    Segment,
    WireBroken,
    Write,
    decode_command,
)
from storage.disk.writing import Stop, Writing
from storage.errors import DiskInUse, FileTrouble

DAMAGED = 3  # exit status: the file is damaged
_READERS = 2
_SWITCH_S = 0.0005  # interpreter's switch interval: about what a thread needs for one block
_BATCH_BYTES = 16 << 20  # of blocks in one transaction, at most


def serve(channel: Channel) -> int:
    """Serve one engine; returns the exit status."""
    try:
        wish = _receive(channel)
    except WireBroken:
        return 0
    if not isinstance(wish, Open):
        return 1
    try:
        opened = open_directory(wish)
        memories = Memories(wish)
    except DiskInUse as error:
        channel.send(channel.encode(Refused(Refusal.IN_USE, str(error))))
        return 1
    except (FileTrouble, OSError) as error:
        channel.send(channel.encode(Refused(Refusal.UNUSABLE, str(error))))
        return 1
    threading.excepthook = _end_process
    sys.setswitchinterval(_SWITCH_S)
    return _Service(channel, wish, opened, memories).run()


class _Service:
    def __init__(
        self, channel: Channel, wish: Open, opened: OpenedFile, memories: Memories
    ) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._wish = wish
        self._opened = opened
        self._memories = memories
        self._records = _records(wish, opened)
        at_once = max(min(_BATCH_BYTES, wish.max_bytes // 64) // wish.block_bytes, 1)
        self._writing = Writing(self._records, memories, self._reply, self._tend, at_once)
        self._reads: queue.SimpleQueue[Read | Stop] = queue.SimpleQueue()
        self._lost = 0

    def run(self) -> int:
        """Serve until the engine is gone or sends Close; returns the exit status."""
        threads = [threading.Thread(target=self._read_all) for _ in range(_READERS)]
        threads.append(threading.Thread(target=self._writing.run))
        for thread in threads:
            thread.start()
        self._reply(Opened(self._opened.set_aside))
        self._tend()
        with suppress(WireBroken):  # when the engine is gone
            while self._take():
                pass
        for _ in range(_READERS):
            self._reads.put(Stop())
        self._writing.queue.put(Stop())
        for thread in threads:
            thread.join()
        self._opened.file.close()
        return 0

    def _take(self) -> bool:
        command = _receive(self._channel)
        if isinstance(command, Read):
            self._reads.put(command)
        elif isinstance(command, Write | Erase):
            self._writing.queue.put(command)
        elif isinstance(command, Forget):
            remove_quarantine(Path(self._wish.directory))
            self._writing.queue.put(command)
        elif isinstance(command, Scan):
            self._scan(command)
        return not isinstance(command, Close | Open)

    def _read_all(self) -> None:
        scratch = memoryview(bytearray(self._wish.block_bytes))
        while isinstance(job := self._reads.get(), Read):
            into = self._memories.block(Segment.STAGING, job.place)
            if self._records.read(job.slot, job.record, into, scratch):
                self._reply(Ended(job.ticket, Outcome.DONE))
            else:
                self._lose([job.slot])
                self._reply(Ended(job.ticket, Outcome.LOST))

    def _scan(self, command: Scan) -> None:
        entries, unsound, next_slot = self._records.scan(command.first)
        self._lose(unsound)
        self._reply(Scanned(entries, next_slot))

    def _lose(self, slots: list[int]) -> None:
        """Delete records that are not what they should be."""
        if slots:
            with self._sending:
                self._lost += len(slots)
            self._writing.queue.put(Erase(slots))

    def _tend(self) -> None:
        """Drop dead readers, and report to the engine how full the file is."""
        file = self._opened.file
        file.drop_dead_readers()
        used = file.use().used
        self._reply(FileStats(file.num_records(), used, self._lost, self._writing.refused))

    def _reply(self, reply: Reply) -> None:
        content = self._channel.encode(reply)
        # Where the engine is gone, the thread that listens to it ends the process.
        with self._sending, suppress(WireBroken):
            self._channel.send(content)


def _records(wish: Open, opened: OpenedFile) -> Records:
    seal = Seal(opened.keys, wish.fingerprint, wish.block_bytes)
    room = Room(
        Path(wish.directory), wish.num_slots, wish.block_bytes, wish.record_bytes, wish.high_water
    )
    return Records(opened.file, seal, room)


def _receive(channel: Channel) -> object:
    content = channel.receive()
    if content is None:
        raise WireBroken("no message where there should be one")
    return decode_command(content)


def _end_process(failed: threading.ExceptHookArgs) -> None:
    """End the process at once: a thread has failed, and with it what it was to do."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.stderr.flush()
    os._exit(DAMAGED)
