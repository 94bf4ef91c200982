"""Whether a process that has died is started again, and when: exponential backoff, then never.

Knows: failures and times. Does not know: processes.
"""

from __future__ import annotations

from collections import deque

from storage.disk.config import DiskConfig


class Restarts:
    """Counts failures within `failure_window_s`. One owner thread."""

    def __init__(self, config: DiskConfig) -> None:
        self._config = config
        self._failures: deque[float] = deque()
        self._due: float | None = None

    def after_failure(self, now: float) -> bool:
        """Note a failure; False: it was one too many, and no process is to be started again."""
        while self._failures and now - self._failures[0] > self._config.failure_window_s:
            self._failures.popleft()
        self._failures.append(now)
        if len(self._failures) >= self._config.max_failures:
            self._due = None
            return False
        self._due = now + self._config.restart_after_s * 2.0 ** (len(self._failures) - 1)
        return True

    def is_due(self, now: float) -> bool:
        """Whether the time has come."""
        return self._due is not None and now >= self._due
