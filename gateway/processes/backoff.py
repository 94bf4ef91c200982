"""The delay before a process that died is started again.

The command line's supervisor uses this delay for the engine, and the parent of workers for workers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays, in seconds, before restarts: almost none after one death, then longer delays."""

    first_delay_s: float = 0.1
    # seconds to wait after a second death, doubled for each later death
    base_delay_s: float = 1.0
    max_delay_s: float = 10.0
    healthy_after_s: float = 60.0  # minimum seconds of a run that resets the count of deaths

    def delay(self, short_runs: int) -> float:
        """Return the seconds to wait after `short_runs` short runs in a row."""
        if short_runs <= 1:
            return self.first_delay_s
        return min(self.base_delay_s * 2.0 ** min(short_runs - 2, 32), self.max_delay_s)
