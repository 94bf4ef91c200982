"""Waits work for file descriptors that are too large for `select`."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import closing

from storage.waiting import wait_for_any

BEYOND_SELECT = 1100


def test_what_can_be_read_or_written_or_has_ended_is_found_whatever_its_number() -> None:
    near, far = socket.socketpair()
    high = fcntl.fcntl(near, fcntl.F_DUPFD, BEYOND_SELECT)
    try:
        with closing(near), closing(far):
            assert wait_for_any([high], 0.0) == []
            assert wait_for_any([high], 0.0, [high]) == [high]
            far.send(b"x")
            assert wait_for_any([high], 30 * 86400.0) == [high], "more than `poll` has a number for"
            assert wait_for_any([near, high], None) == [near.fileno(), high]
            assert near.recv(1) == b"x"
            assert wait_for_any([high], 0.01) == []
        assert wait_for_any([high]) == [high], "the other end is gone"
    finally:
        os.close(high)
