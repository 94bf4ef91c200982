"""The processes of the other ranks. Rank 0 starts, watches and ends them.

If rank 0 ends, the kernel kills the other ranks (`PR_SET_PDEATHSIG`), and their sockets close. If
another rank ends, rank 0 ends too: a thread waits for the end of any rank's process, and kills the
others. Rank 0 gets a moment to tell the clients, then its process ends, even if it is waiting for
the GPU. A rank that hangs stops the engine's steps, which the heartbeat shows.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from engine.process import EXIT_BROKEN, EXIT_CANNOT_START, EXIT_NOT_SERVED
from storage.child_module import start_module
from storage.waiting import wait_for_any

# The seconds from another rank's end to this process's end, enough to tell all clients.
GRACE_S = 2.0
# The seconds from another rank's failed start to this process's end. They are more, because this
# process may notice the failure only when it has loaded its weights.
START_GRACE_S = 60.0
NOT_STARTED = (EXIT_CANNOT_START, EXIT_NOT_SERVED)
END_S = 10.0  # seconds until ranks that were asked to end are killed

_log = logging.getLogger(__name__)


class RankProcess:
    """A rank's process, and a socket to it.

    `RanksWatch` watches and kills it together with other ranks. Used by one thread only.
    """

    def __init__(self, rank: int, descriptors: Sequence[int]) -> None:
        """Start the process, which inherits `descriptors`. Raises OSError."""
        self.rank = rank
        self.socket, its_own = socket_pair()
        with its_own:
            self._child = start_module(
                "engine.follower",
                *(str(number) for number in (rank, os.getpid(), its_own.fileno())),
                descriptors=[its_own.fileno(), *descriptors],
            )
        # Becomes readable when the process has ended.
        self.descriptor = os.pidfd_open(self._child.pid)

    @property
    def status(self) -> int | None:
        """The exit status, or None while the process runs."""
        return self._child.poll()

    def kill(self) -> None:
        """Kill the process, even if it is stopped."""
        self._child.kill()

    def finish(self, deadline: float) -> None:
        """Wait for the end of the process. Kill it at `deadline`, in monotonic seconds."""
        try:
            self._child.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            _log.warning("rank %d did not end, and is killed", self.rank)
            self._child.kill()
            self._child.wait()
        os.close(self.descriptor)
        self.socket.close()


class RanksWatch:
    """A thread that ends the engine if a rank ends."""

    def __init__(
        self, processes: Sequence[RankProcess], end: Callable[[int], None], grace_s: float = GRACE_S
    ) -> None:
        """Watch `processes`. If one ends, call `end` with an exit status, on the thread."""
        self._processes = processes
        self._end = end
        self._grace_s = grace_s
        self._is_over, self._over = os.pipe()
        self._thread = threading.Thread(target=self._run, name="ranks-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        os.close(self._over)
        self._thread.join()
        os.close(self._is_over)

    def _run(self) -> None:
        ends = {one.descriptor: one for one in self._processes}
        ready = wait_for_any([self._is_over, *ends])
        if self._is_over in ready:
            return
        gone = ends[ready[0]]
        status, grace_s = gone.status, self._grace_s
        if status in NOT_STARTED:
            # Rank 0 itself will report why the other rank did not start.
            grace_s = max(grace_s, START_GRACE_S)
        else:
            status = EXIT_BROKEN
            _log.error("rank %d has ended, so the engine ends", gone.rank)
        for process in self._processes:
            process.kill()  # unblocks threads that are waiting for the process
        if not wait_for_any([self._is_over], grace_s):
            self._end(status)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Open a pair of sockets that keep the boundaries and the order of messages."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
