"""The waking of a thread that waits for sockets by another: a descriptor to be polled."""

from __future__ import annotations

import os


class Waker:
    """Descriptor that any thread may make readable; one waits for `fd` and clears it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make `fd` readable. Nothing happens once it is closed."""
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Make it unreadable until the next `wake`."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return  # nobody has woken

    def close(self) -> None:
        """Close the descriptor, after all who might wake have ended."""
        fd, self.fd = self.fd, -1  # in this order: its number may soon be another's
        os.close(fd)
