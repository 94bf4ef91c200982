"""A forked process, with the methods of an executed process that the parent of workers uses."""

from __future__ import annotations

import asyncio
import os
import signal
import socket


class ForkedProcess:
    """A child of this process, and this process's end of a socket between both."""

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
        """Wait for the end, once; return the exit status, negative for a signal."""
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
        """Close what a process that was forked later has inherited of this process."""
        self.end.close()
        os.close(self._descriptor)
