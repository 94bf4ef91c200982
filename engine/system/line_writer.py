"""A thread that writes lines to a stream, so that no other thread waits for the stream's reader.

While the reader reads nothing, at most MAX_WAITING lines are queued, and further lines are dropped.
Later the number of dropped lines is written.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import NoReturn

MAX_WAITING = 1000
_END_S = 5.0  # at the end of the process, maximum seconds to wait for queued lines


class LineWriter:
    """A writer of lines to one stream. Used by one thread only."""

    def __init__(self, descriptor: int) -> None:
        """Write to a file descriptor. A stream could block the end of the process."""
        self._descriptor = descriptor
        self._waiting: queue.Queue[str | threading.Event] = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()  # guards the field `_lost`
        self._lost = 0
        threading.Thread(target=self._run, name="lines", daemon=True).start()

    def put(self, line: str) -> None:
        """Queue a line to be written, or drop it if too many lines are queued."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._count(1)

    def drain(self, seconds: float = _END_S) -> None:
        """Wait for at most `seconds` until the lines queued so far are written."""
        written = threading.Event()
        try:
            self._waiting.put(written, timeout=seconds)
        except queue.Full:
            return
        written.wait(seconds)

    def _run(self) -> None:
        while True:
            line = self._waiting.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            lost = self._lost
            if lost and self._is_written(f"ratoon: {lost} lines could not be written"):
                self._count(-lost)
            if not self._is_written(line):
                self._count(1)

    def _is_written(self, line: str) -> bool:
        try:
            data = f"{line}\n".encode(errors="backslashreplace")
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # a full disk must not end the server
            return False
        return True

    def _count(self, lost: int) -> None:
        with self._lock:
            self._lost += lost


class LogHandler(logging.Handler):
    """A handler of a process's log, with a `flush` that waits for a limited time."""

    def __init__(self, form: logging.Formatter, descriptor: int = 2) -> None:
        super().__init__()
        self.setFormatter(form)
        self._lines = LineWriter(descriptor)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record to be written, or drop it if too many lines are queued."""
        self._lines.put(self.format(record))

    def flush(self) -> None:
        """Wait for at most _END_S seconds until the records so far are written."""
        self._lines.drain()


def log_lines(form: str) -> None:
    """Send this process's log to standard error. `form` is a format string of `logging`."""
    handler = LogHandler(logging.Formatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def end_process(code: int) -> NoReturn:
    """Flush the log, and end the process without cleaning up."""
    for handler in logging.root.handlers:
        handler.flush()
    os._exit(code)
