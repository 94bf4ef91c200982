"""Waiting for file descriptors of any number.

`select.select` raises for descriptors above 1,023, which an engine with many connections has.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from math import ceil
from typing import Protocol

MOST_S = (2**31 - 1) // 1000  # maximum wait in seconds: `poll` takes at most 2**31 - 1 ms


class HasFileno(Protocol):
    """A socket or another open file."""

    def fileno(self) -> int:
        """Return the file descriptor."""
        ...


def wait_for_any(
    readable: Iterable[int | HasFileno],
    timeout_s: float | None = None,
    writable: Iterable[int | HasFileno] = (),
) -> list[int]:
    """Wait until any file is readable, writable or closed, and return its descriptors.

    A `timeout_s` of None, or of more than 24 days (the limit of `poll`), means no timeout.
    """
    poll = select.poll()
    for one in readable:
        poll.register(one, select.POLLIN)
    for one in writable:
        poll.register(one, select.POLLIN | select.POLLOUT)
    is_endless = timeout_s is None or timeout_s > MOST_S
    found = poll.poll(None if is_endless else ceil(max(timeout_s or 0.0, 0.0) * 1e3))
    return [descriptor for descriptor, _ in found]
