"""The disk's process: it opens the file and answers the engine until the engine is gone.

    main thread       takes commands, scans
    one thread        writes, erases, forgets (`writing`), in the order of the commands
    two threads       read: so a read waits neither for writes nor for one slow read

An error of the file ends the process at once, and the engine starts another process with a new
file. If the file system has too little free space, writes stop until there is space, and reads go
on. If other users have filled the file system completely, the process removes the file and ends.
When the engine is gone, the process ends after all queued writes.
"""

from __future__ import annotations

import mmap
import os
import queue
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial

from storage.disk import wire
from storage.disk.file.done_flushes import add_done
from storage.disk.file.head_room import slots_in
from storage.disk.file.records import DiskRecords, ScanRoom
from storage.disk.file.seal import RecordSeal
from storage.disk.opening import OpenedFile, make_room, open_directory, remove_quarantine
from storage.disk.writing import Writing
from storage.errors import DiskInUse, FileTrouble, is_disk_full

DAMAGED = 3
_READERS = 2
_SWITCH_S = 0.0005  # seconds after which Python switches threads; one block takes about as long
_BATCH_BYTES = 16 << 20  # maximum bytes of blocks in one transaction


def serve(channel: wire.Channel) -> int:
    """Serve one engine, and return the exit status."""
    try:
        wish = _receive(channel)
    except wire.WireBroken:
        return 0
    if not isinstance(wish, wire.Open):
        return 1
    try:
        opened = open_directory(wish)
        memories = _memories(wish)
    except DiskInUse as error:
        return _refuse(channel, wire.OpenRefusal.IN_USE, error)
    except (FileTrouble, OSError) as error:
        why = wire.OpenRefusal.DISK_FULL if is_disk_full(error) else wire.OpenRefusal.UNUSABLE
        return _refuse(channel, why, error)
    threading.excepthook = _end_process
    sys.setswitchinterval(_SWITCH_S)
    return _Service(channel, wish, opened, memories).run()


def _refuse(channel: wire.Channel, refusal: wire.OpenRefusal, error: Exception) -> int:
    with suppress(wire.WireBroken):
        channel.send(channel.encode(wire.WriteRefused(refusal, str(error))))
    return 1


class _Service:
    def __init__(
        self,
        channel: wire.Channel,
        wish: wire.Open,
        opened: OpenedFile,
        memories: dict[wire.Segment, memoryview],
    ) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._config = config = wish.config
        self._opened = opened
        self._memories = memories
        num_slots = wish.num_slots
        if num_slots is None:
            bound = opened.file.use().bound
            num_slots = slots_in(bound, config.record_bytes, config.high_water)
        self._num_slots = num_slots
        seal = RecordSeal(opened.keys, config.fingerprint, config.block_bytes)
        room = ScanRoom(opened.head_room, num_slots, config.block_bytes, config.record_bytes)
        self._records = DiskRecords(opened.file, seal, room)
        at_once = max(min(_BATCH_BYTES // config.block_bytes, num_slots // 64), 1)
        note_done = partial(add_done, config.directory)
        self._writing = Writing(
            self._records, self._block, self._reply, self._tend, at_once, note_done
        )
        self._reads: queue.SimpleQueue[wire.Read | wire.CloseFile] = queue.SimpleQueue()
        self._lost = 0

    def run(self) -> int:
        threads = [threading.Thread(target=self._read_all) for _ in range(_READERS)]
        threads.append(threading.Thread(target=self._writing.run))
        for thread in threads:
            thread.start()
        opened = self._opened
        self._reply(wire.Opened(opened.set_aside, opened.given_up, self._num_slots))
        self._tend()
        with suppress(wire.WireBroken):
            while self._take():
                pass
        for _ in range(_READERS):
            self._reads.put(wire.CloseFile())
        self._writing.queue.put(wire.CloseFile())
        for thread in threads:
            thread.join()
        self._opened.file.close()
        return 0

    def _take(self) -> bool:
        command = _receive(self._channel)
        if isinstance(command, wire.Read):
            self._reads.put(command)
        elif isinstance(command, wire.Write | wire.Erase):
            self._writing.queue.put(command)
        # quarantined records must be erased, too
        elif isinstance(command, wire.Forget | wire.Note):
            remove_quarantine(self._config.directory)
            self._writing.queue.put(command)
        elif isinstance(command, wire.Scan):
            self._scan(command)
        return not isinstance(command, wire.CloseFile | wire.Open)

    def _read_all(self) -> None:
        scratch = memoryview(bytearray(self._config.block_bytes))
        while isinstance(job := self._reads.get(), wire.Read):
            into = self._block(wire.Segment.STAGING, job.place)
            if self._records.read(job.slot, job.record, into, scratch):
                self._reply(wire.DiskEnded(job.ticket, wire.DiskOutcome.DONE))
            else:
                self._lose([job.slot])
                self._reply(wire.DiskEnded(job.ticket, wire.DiskOutcome.LOST))

    def _block(self, segment: wire.Segment, place: int) -> memoryview:
        size = self._config.block_bytes
        return self._memories[segment][place * size : (place + 1) * size]

    def _scan(self, command: wire.Scan) -> None:
        entries, unsound, next_slot = self._records.scan(command.first)
        self._lose(unsound)
        self._reply(wire.ScannedSlots(entries, next_slot))

    def _lose(self, slots: list[int]) -> None:
        """Delete records that are not sound or not the requested records."""
        if slots:
            with self._sending:
                self._lost += len(slots)
            self._writing.queue.put(wire.Erase(slots))

    def _tend(self) -> None:
        file, head_room = self._opened.file, self._opened.head_room
        file.drop_dead_readers()
        num_records = file.num_records()
        if num_records and make_room(head_room):
            self._reply(wire.WriteRefused(wire.OpenRefusal.DISK_FULL, "others need the disk"))
            os._exit(0)  # the exit closes the file, which frees its space
        disk_full = self._writing.met_full_disk or not head_room.is_kept()
        lost, refused = self._lost, self._writing.refused
        self._reply(wire.FileStats(num_records, file.use().used, lost, refused, disk_full))

    def _reply(self, reply: wire.Reply) -> None:
        content = self._channel.encode(reply)
        # If the engine is gone, the thread that listens to it ends the process.
        with self._sending, suppress(wire.WireBroken):
            self._channel.send(content)


def _memories(wish: wire.Open) -> dict[wire.Segment, memoryview]:
    size = wish.config.block_bytes
    views = {wire.Segment.STAGING: _map(wish.staging, size, mmap.PROT_READ | mmap.PROT_WRITE)}
    if wish.host is not None:
        views[wire.Segment.HOST] = _map(wish.host, size, mmap.PROT_READ)
    return views


def _receive(channel: wire.Channel) -> object:
    content = channel.receive()
    if content is None:
        raise wire.WireBroken("no message where there should be one")
    return wire.decode(wire.COMMANDS, content)


def _end_process(failed: threading.ExceptHookArgs) -> None:
    """End the process at once, because a thread has failed and its work is lost."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.stderr.flush()
    os._exit(DAMAGED)


def _map(memory: wire.SharedSegment, block_bytes: int, protection: int) -> memoryview:
    return memoryview(mmap.mmap(memory.fd, memory.num_blocks * block_bytes, prot=protection))
