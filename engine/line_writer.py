"""A thread that writes lines, so no other thread waits for the lines' reader.

While the reader takes no lines, lines beyond MAX_WAITING are dropped. The writer then writes the
number of lost lines.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import NoReturn

MAX_WAITING = 1000
_END_S = 5.0  # maximum seconds of waiting for queued lines at the end


class LineWriter:
    """A writer of lines to one stream. Used by one thread only."""

    def __init__(self, descriptor: int) -> None:
        """Write to a descriptor, because the process's end would wait for a stream."""
        self._descriptor = descriptor
        self._waiting: queue.Queue[str | threading.Event] = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()  # guards `_lost`
        self._lost = 0
        threading.Thread(target=self._run, name="lines", daemon=True).start()

    def put(self, line: str) -> None:
        """Queue a line to be written, or drop it if too many wait."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._count(1)

    def drain(self, seconds: float = _END_S) -> None:
        """Wait until the lines so far are written, for at most `seconds`."""
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
        """Queue a record to be written, or drop it if too many wait."""
        self._lines.put(self.format(record))

    def flush(self) -> None:
        """Wait until the records so far are written, for at most _END_S."""
        self._lines.drain()


def log_lines(form: str) -> None:
    """Send this process's log to standard error. `form` is a format of `logging`."""
    handler = LogHandler(logging.Formatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def end_process(code: int) -> NoReturn:
    """Flush the log, and end the process without cleaning up."""
    for handler in logging.root.handlers:
        handler.flush()
    os._exit(code)
