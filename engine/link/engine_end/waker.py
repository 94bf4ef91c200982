"""A descriptor by which one thread wakes another that polls sockets."""

from __future__ import annotations

import os


class Waker:
    """A descriptor that any thread may make readable. One thread polls `fd` and clears it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make `fd` readable, or do nothing once it is closed."""
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Make `fd` unreadable until the next `wake`."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor, after all threads that might wake it have ended."""
        fd, self.fd = self.fd, -1  # another file may soon get the number
        os.close(fd)
