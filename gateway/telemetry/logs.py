"""The log lines, which cannot contain a prompt or a key.

The message of an exception may quote its input, so it is left out. The types of the exceptions and
the places in the code are enough to find the fault. Lines are written by a thread
(`engine.system.line_writer`), so no event loop waits for the log's reader.
"""

import logging
import traceback
from types import TracebackType

from engine.system.line_writer import LogHandler
from gateway.telemetry.harmless import harmless

_STDERR = 2
_FORM = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class QuietFormatter(logging.Formatter):
    """A log formatter without exceptions' messages, source lines and control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as text without control characters."""
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


def set_up_logging(level: str, *, by_thread: bool = True) -> None:
    """Send all logs to standard error, through `QuietFormatter`.

    Without `by_thread`, this process has no other thread and may fork. A slow reader delays it.
    """
    form = QuietFormatter(_FORM)
    handler: logging.Handler = LogHandler(form, _STDERR) if by_thread else logging.StreamHandler()
    handler.setFormatter(form)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
