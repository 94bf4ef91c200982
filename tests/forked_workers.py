"""Workers of xdist that are forked from the starting process, which has imported all tests.

Otherwise each worker would import the tests again, which takes two thirds of its time before its
first test. Workers are forked before the starting process has threads, and wait until xdist asks
for one.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tests.doubles.forks.becoming import end, finish
from tests.doubles.forks.server import share

# the beginning of xdist's command, without the code argument
WORKER = [os.fsencode(sys.executable), b"-u", b"-c"]


class ForkedWorkers:
    """Waiting workers, each with the socket through which it will get its pipes."""

    def __init__(self, count: int) -> None:
        """Fork `count` workers."""
        # the processes share imported objects as long as the garbage collector does not touch these
        gc.freeze()
        self._ready: list[tuple[int, socket.socket]] = []
        self._fork_exec = vars(subprocess)["_fork_exec"]
        for _ in range(count):
            self._fork()
        vars(subprocess)["_fork_exec"] = self.fork_exec

    def fork_exec(self, words: Sequence[Any], *how: Any) -> int:
        """Start a process; return its id. The arguments are those of
        `_posixsubprocess.fork_exec`.
        """
        *program, code = map(os.fsencode, words)
        if program != WORKER or not self._ready:
            started: int = self._fork_exec(words, *how)
            return started
        pid, ours = self._ready.pop()
        with ours:
            stdin, stdout = how[5], how[8]
            socket.send_fds(ours, [code], [stdin, stdout])
        return pid

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            theirs.close()
            self._ready.append((pid, ours))
            return
        try:
            for other in (ours, *(one for _, one in self._ready)):
                other.close()  # each worker can then notice that the starting process has ended
            _work(theirs)
            finish()
        finally:
            end(0)


def _work(asked: socket.socket) -> None:
    """Run a worker with the pipes that are sent to it, as `python -c` would."""
    with asked:
        code, pipes, *_ = socket.recv_fds(asked, 4096, 2)
    if not pipes:
        return
    for place, pipe in enumerate(pipes):
        os.dup2(pipe, place)
        os.close(pipe)
    share()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["-c"]
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(code, vars(main))
