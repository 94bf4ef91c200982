"""The main loop of the engine's process: it runs steps until a signal arrives, then drains.

    serving --SIGTERM, SIGINT--> draining --no request left, or grace over-->
        spilling to disk --all written, or spill grace over--> exit 0
       `---------- after any exception: every request fails, exit 1 --------'

After SIGUSR1 the engine drains without a time limit. A SIGTERM during this drain sets the usual
time limit. After a broken invariant or a permanent device error, the process ends, and its
supervisor starts another.

Elsewhere: the step (`core.py`).
"""

from __future__ import annotations

import logging
import signal
import time
from types import FrameType
from typing import Protocol

from engine.errors import EngineDied, EngineError, EngineUnavailable

EXIT_STOPPED = 0
EXIT_BROKEN = 1
EXIT_CANNOT_START = 2
EXIT_NOT_SERVED = 3  # the model cannot be served, so another start would fail too
CHECK_EVERY_S = 60.0
DRAIN_SIGNAL = signal.SIGUSR1

_log = logging.getLogger(__name__)


class AnotherRankIsGone(Exception):
    """An error: another rank has died or does not answer.

    This process must end too, although it has no fault itself.
    """


class Core(Protocol):
    """An interface to the engine's core. Tests replace the core by a scripted one."""

    @property
    def is_idle(self) -> bool:
        """True if no request is waiting or running."""
        ...

    @property
    def is_quickly_checked(self) -> bool:
        """True if `check_invariants` hardly delays a new request or the process's end."""
        ...

    def step(self) -> None:
        """Run one iteration of the engine's loop."""
        ...

    def drain(self) -> None:
        """Refuse new requests from now on."""
        ...

    def spill(self, seconds: float) -> None:
        """Write to disk the blocks that are not on disk yet, for at most `seconds`."""
        ...

    def fail_all(self, error: EngineError) -> None:
        """End every accepted request with `error`, and tell its client."""
        ...

    def report_all(self, error: EngineError) -> None:
        """Tell all clients that their requests failed. Other data may be broken and is not used."""
        ...

    def check_invariants(self) -> None:
        """Raise InvariantBroken if the cache's counts do not add up."""
        ...


class StopSignal:
    """The signal that asked the process to stop, and whether running requests may finish."""

    def __init__(self) -> None:
        self.is_set = False
        self.has_time = False  # True if running requests may finish without a time limit

    def listen(self) -> None:
        """Handle SIGTERM, SIGINT and DRAIN_SIGNAL. Only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT, DRAIN_SIGNAL):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.has_time = number == DRAIN_SIGNAL and (self.has_time or not self.is_set)
        self.is_set = True


def serve(core: Core, stop: StopSignal, *, grace_s: float, spill_grace_s: float = 0.0) -> int:
    """Run the engine until it is stopped or breaks, and return the exit code."""
    try:
        _run(core, stop)
        _drain(core, stop, grace_s)
        core.spill(spill_grace_s)
    except AnotherRankIsGone as error:  # the traceback of this error would not help
        _log.error("another rank is gone, so the engine ends: %s", error)
        _report(core)
        return EXIT_BROKEN
    except Exception:  # noqa: BLE001  the outermost loop: whatever went wrong ends the process
        _log.exception("the engine broke and ends")
        _report(core)
        return EXIT_BROKEN
    return EXIT_STOPPED


def _run(core: Core, stop: StopSignal) -> None:
    checked, dirty = time.monotonic(), False
    while not stop.is_set:
        core.step()
        now = time.monotonic()
        dirty = dirty or not core.is_idle
        is_due = dirty and core.is_idle and now - checked >= CHECK_EVERY_S
        if is_due and core.is_quickly_checked:
            core.check_invariants()
            checked, dirty = now, False


def _drain(core: Core, stop: StopSignal, grace_s: float) -> None:
    core.drain()
    while stop.has_time and not core.is_idle:
        core.step()
    deadline = time.monotonic() + grace_s
    while not core.is_idle and time.monotonic() < deadline:
        core.step()
    core.fail_all(EngineUnavailable("the engine stopped"))
    if core.is_quickly_checked:
        core.check_invariants()


def _report(core: Core) -> None:
    """Tell the clients of the failure. If the link is broken, they notice the process's end."""
    try:
        core.report_all(EngineDied("the engine broke while the request ran"))
    except Exception:  # noqa: BLE001  the process ends either way
        _log.exception("the running requests could not be told")
