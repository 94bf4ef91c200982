"""The log lines, which cannot contain a prompt or a key.

The message of an exception may quote its input, so it is left out: the types of the exceptions
and the places in the code are enough to find the fault.

Lines are written by a thread, so that no loop waits for whoever reads them. While nobody does, the
lines beyond MAX_WAITING are dropped, and counted in the first that is written afterwards.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import traceback
from contextlib import suppress
from types import TracebackType

from gateway.telemetry.harmless import harmless

MAX_WAITING = 1000  # lines
_END_S = 2.0  # at most, at the process's end, for lines that wait
_FORM = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class QuietFormatter(logging.Formatter):
    """A log formatter that leaves out exceptions' messages, source lines, control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as text that no terminal obeys."""
        return harmless(super().format(record))

    def formatException(self, ei: ExcInfo) -> str:
        """List the types and places of an exception and of its causes, the first cause first."""
        chain: list[str] = []
        error = ei[1]
        while error is not None:
            chain.append(_describe(error))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\nled to:\n".join(reversed(chain))


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return "\n".join([f"{type(error).__module__}.{type(error).__qualname__}", *places])


class QueueingHandler(logging.Handler):
    """A handler whose lines wait for `write_on`, which another thread runs."""

    def __init__(self, waiting: queue.Queue[str | None]) -> None:
        super().__init__()
        self._waiting = waiting
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line, or drop it where too many wait."""
        line = self.format(record) + "\n"
        if self._dropped:
            line = f"{self._dropped} lines of the log were not written\n{line}"
        try:
            self._waiting.put_nowait(line)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1


def write_on(waiting: queue.Queue[str | None], descriptor: int) -> None:
    """Write lines as they come, until None."""
    while (line := waiting.get()) is not None:
        data = line.encode(errors="backslashreplace")
        with suppress(OSError):
            while data:
                data = data[os.write(descriptor, data) :]


def set_up_logging(level: str, descriptor: int = 2) -> None:
    """Send all logs to `descriptor`, standard error, through `QuietFormatter`."""
    waiting: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
    handler = QueueingHandler(waiting)
    handler.setFormatter(QuietFormatter(_FORM))
    writer = threading.Thread(target=write_on, args=(waiting, descriptor), name="log", daemon=True)
    writer.start()

    def end() -> None:
        with suppress(queue.Full):
            waiting.put(None, timeout=_END_S)
            writer.join(_END_S)

    atexit.register(end)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
