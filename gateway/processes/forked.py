"""A forked process, with those methods of asyncio's process that the parent of workers uses."""

from __future__ import annotations

import asyncio
import os
import signal
import socket


class ForkedProcess:
    """A child of this process, and the parent's end of the socket between both."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self.end = end
        self._descriptor = os.pidfd_open(pid)

    @classmethod
    def start(cls) -> ForkedProcess | socket.socket:
        """Fork; return the child in this process, and the child's end of the socket in the child.

        Call before this process has threads or an event loop. Raises OSError if the system has no
        process or file left.
        """
        ours, its = socket.socketpair()
        try:
            pid = os.fork()
            if not pid:
                ours.close()
                return its
            child = cls(pid, ours)
        except OSError:
            ours.close()  # ends the child, if it was started
            its.close()
            raise
        its.close()
        return child

    def terminate(self) -> None:
        """Send SIGTERM; raise ProcessLookupError if the process has ended."""
        signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL; raise ProcessLookupError if the process has ended."""
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the process's end; return its exit status, negative for a signal. Call once."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._descriptor)
        return self._bury()

    def _bury(self) -> int:
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """Close what `start` opened. Call in children that are forked later."""
        self.end.close()
        os.close(self._descriptor)
