"""The process that compiles each grammar, over the engine's vocabulary, before the engine does.

The command is `python -m engine.grammars.check_process MODEL_DIR NUM_LOGITS END...`, where each END
is the id of a token that ends a sequence. The process reads the vocabulary once. Its standard input
is a socket over which it receives connections. For each connection the process forks a worker,
which inherits the vocabulary. A worker reads `Grammar`s and writes `Checked`s, as lines of JSON. A
worker that runs out of time, memory or stack is ended. The last line it writes says why.

Elsewhere: the check itself (`check.py`), and the engine's end of a connection (`checker.py`).
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import msgspec

from engine.grammars.check import Checked, checked_over
from engine.grammars.limits import CHECK_BYTES, CHECK_S, CHECK_STACK_BYTES
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from storage.waiting import wait_for_any

READY = b"\n"  # written to stdout once the vocabulary is read
_WARM_UP = Grammar("json_schema", '{"type": "object"}')


@dataclass
class _Workers:
    """The running workers. Each has a descriptor that becomes readable when the worker ends."""

    control: socket.socket
    vocabulary: Vocabulary
    running: dict[int, tuple[int, socket.socket]] = field(default_factory=dict)

    def serve(self) -> None:
        while True:
            for found in wait_for_any([self.control, *self.running]):
                if found != self.control.fileno():
                    self._bury(found)
                elif not self._start():
                    return

    def _start(self) -> bool:
        """Fork a worker for a connection. Return False after the last connection."""
        _, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        if not descriptors:
            return False
        connection = socket.socket(fileno=descriptors[0])
        process = os.fork()
        if process == 0:
            self.control.close()
            for _, other in self.running.values():
                other.close()
            _work(connection, self.vocabulary)
        self.running[os.pidfd_open(process)] = process, connection
        return True

    def _bury(self, descriptor: int) -> None:
        process, connection = self.running.pop(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(process, 0)
        with connection, suppress(OSError):  # the peer may be gone
            if status:
                connection.sendall(_line(Checked(error=_why(status), is_last=True)))


def _why(status: int) -> str:
    if os.waitstatus_to_exitcode(status) == -signal.SIGXCPU:
        return f"it takes more than {CHECK_S} s to compile"
    return "it is nested too deeply, or needs too much memory to compile"


def _line(checked: Checked) -> bytes:
    return msgspec.json.encode(checked) + b"\n"


def _work(connection: socket.socket, vocabulary: Vocabulary) -> None:
    """Check grammars received over the connection, on a small stack. Then end the process."""
    limit = _address_space() + CHECK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    threading.stack_size(CHECK_STACK_BYTES)
    thread = threading.Thread(target=_check_all, args=(connection, vocabulary))
    thread.start()
    thread.join()
    os._exit(0)


def _check_all(connection: socket.socket, vocabulary: Vocabulary) -> None:
    decoder = msgspec.json.Decoder(Grammar)
    with connection.makefile("rb") as lines, suppress(OSError):
        for line in lines:
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds = ceil(used.ru_utime + used.ru_stime) + CHECK_S
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            connection.sendall(_line(checked_over(decoder.decode(line), vocabulary)))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def main(model_dir: str, *numbers: str) -> None:
    """Serve the engine at the other end of stdin, until that end is closed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    num_logits, *ends = map(int, numbers)
    vocabulary = read_vocabulary(Path(model_dir), num_logits, tuple(ends))
    # Let workers share the memory of llguidance's first allocations.
    checked_over(_WARM_UP, vocabulary)
    gc.freeze()  # so that workers share the memory of Python's objects
    with socket.socket(fileno=os.dup(0)) as control:
        control.sendall(READY)
        _Workers(control, vocabulary).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
