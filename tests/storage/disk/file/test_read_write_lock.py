"""A lock that many readers may share, or one writer may hold alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from storage.disk.file.read_write_lock import ReadWriteLock

HANG_S = 30.0


def test_it_is_shared_by_many_at_once() -> None:
    lock, all_in = ReadWriteLock(), threading.Barrier(4)

    def share() -> None:
        with lock.shared():
            all_in.wait(HANG_S)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(share) for _ in range(4)]:
            done.result(HANG_S)


def test_one_alone_is_alone_although_others_come_and_go() -> None:
    lock, inside, seen = ReadWriteLock(), [0], []
    counting = threading.Lock()

    def share() -> None:
        for _ in range(300):
            with lock.shared():
                with counting:
                    inside[0] += 1
                with counting:
                    inside[0] -= 1

    def alone() -> None:
        for _ in range(100):
            with lock.alone():
                seen.append(inside[0])
                inside[0] += 1000
                inside[0] -= 1000

    with ThreadPoolExecutor(5) as threads:
        jobs = [threads.submit(work) for work in (share, share, share, alone, alone)]
        for job in jobs:
            job.result(HANG_S)
    assert seen == [0] * 200


def test_an_error_inside_lets_go() -> None:
    lock = ReadWriteLock()
    for hold in (lock.shared, lock.alone):
        try:
            with hold():
                raise KeyError
        except KeyError:
            pass
    with lock.alone():
        pass
