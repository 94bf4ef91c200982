"""The staging buffers for blocks to and from the disk's process.

After a read was given up, the disk's process may still write into the read's buffer. Such a buffer
is *owed* an answer, and becomes free when the answer comes or the process is dead.
"""

from __future__ import annotations

import torch

from storage.pools.host_pool import HostPool


class Staging:
    """Staging buffers of one block each. Used by one thread only."""

    def __init__(self, num_buffers: int, block_bytes: int, device: torch.device) -> None:
        """Allocate the buffers, pinned for copies to and from `device`. Raises PoolDoesNotFit."""
        self.pool = HostPool(num_buffers, block_bytes, device)
        self._free = list(range(num_buffers))
        self._owed: dict[int, int] = {}  # buffers of abandoned reads, by ticket
        self._given_back: set[int] = set()

    @property
    def num_free(self) -> int:
        """The number of free buffers."""
        return len(self._free)

    @property
    def is_owed(self) -> bool:
        """True if the process has not answered all given-up reads yet."""
        return bool(self._owed)

    def take(self) -> int | None:
        """Reserve a free buffer, or return None if all are in use."""
        return self._free.pop() if self._free else None

    def give_back(self, buffer: int) -> None:
        """Give a buffer back. The buffer becomes free once the process owes it no answer."""
        if buffer in self._owed.values():
            self._given_back.add(buffer)
        else:
            self._free.append(buffer)

    def owe(self, ticket: int, buffer: int) -> None:
        """Record that the read `ticket` was given up but may still write into `buffer`."""
        self._owed[ticket] = buffer

    def answered(self, ticket: int) -> bool:
        """Free the buffer of a given-up read. Return whether `ticket` was a given-up read."""
        buffer = self._owed.pop(ticket, None)
        if buffer is None:
            return False
        if buffer in self._given_back:
            self._given_back.remove(buffer)
            self._free.append(buffer)
        return True

    def no_answers_to_come(self) -> None:
        """Free all owed buffers that were given back, because the process is dead."""
        self._free.extend(self._given_back)
        self._owed, self._given_back = {}, set()

    def close(self) -> None:
        self.pool.close()
