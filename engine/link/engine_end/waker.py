"""A file descriptor with which a thread can wake another thread that polls sockets."""

from __future__ import annotations

import os


class Waker:
    """A file descriptor `fd` that any thread can make readable. One thread polls and clears it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make `fd` readable. Does nothing after `close`."""
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Make `fd` unreadable until the next `wake`."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor. All threads that may call `wake` must have ended."""
        fd, self.fd = self.fd, -1  # another file may soon get the same descriptor number
        os.close(fd)
