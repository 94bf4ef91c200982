"""Ways of batching, for comparison: requests are held back until a batch is formed.

    continuous       each request is sent when it arrives; the server joins it to its running batch
    dynamic:32:50ms  a batch is sent when 32 requests wait, or the oldest has waited 50 ms
    static:32        a batch is sent when the batch before has ended and 32 requests wait, or no
                     more will arrive

This module decides how many waiting requests to send, and when to decide again. It does no I/O.
"""

from dataclasses import dataclass
from typing import Protocol

from cli.errors import BadSetting
from cli.load.slo import parse_seconds

FLAG = "--batching"
ALL = "static:32,dynamic:32:50ms,continuous"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The requests that the client holds back. Times are in seconds on one clock."""

    count: int
    oldest_at: float
    running: int
    more_will_come: bool


class Batching(Protocol):
    """A way to form batches."""

    def due(self, queue: Waiting, now: float) -> int:
        """Return the number of requests to send now."""
        ...

    def deadline(self, queue: Waiting) -> float | None:
        """Return when a batch is due if no request arrives or ends before, or None for never."""
        ...


@dataclass(frozen=True, slots=True)
class ContinuousBatching:
    """A way of batching that holds no request back."""

    def due(self, queue: Waiting, now: float) -> int:  # noqa: ARG002 (of the protocol)
        return queue.count

    def deadline(self, queue: Waiting) -> float | None:  # noqa: ARG002 (of the protocol)
        return None


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Dynamic batching: batches of `size` requests, or of fewer after `wait_s`."""

    size: int
    wait_s: float

    def due(self, queue: Waiting, now: float) -> int:
        """Return the requests in whole batches, or all if the oldest has waited long enough."""
        if queue.count and now >= queue.oldest_at + self.wait_s:
            return queue.count
        return queue.count - queue.count % self.size

    def deadline(self, queue: Waiting) -> float | None:
        return queue.oldest_at + self.wait_s if queue.count else None


@dataclass(frozen=True, slots=True)
class StaticBatching:
    """Static batching: batches of `size`, one after another. The last may be smaller."""

    size: int

    def due(self, queue: Waiting, now: float) -> int:  # noqa: ARG002 (of the protocol)
        """Return the size of the batch to send, or 0 while a batch runs or forms."""
        is_formed = queue.count >= self.size or not queue.more_will_come
        return min(queue.count, self.size) if is_formed and not queue.running else 0

    def deadline(self, queue: Waiting) -> float | None:  # noqa: ARG002 (of the protocol)
        return None


def parse_batchings(text: str) -> dict[str, Batching]:
    """Read the ways of batching in `text`, by name. 'all' means `ALL`. Raises BadSetting."""
    names = [name.strip() for name in (ALL if text == "all" else text).split(",")]
    return {name: _parse(name) for name in names}


def _parse(name: str) -> Batching:
    match name.split(":"):
        case ["continuous"]:
            return ContinuousBatching()
        case ["static", size] if _is_count(size):
            return StaticBatching(int(size))
        case ["dynamic", size, wait] if _is_count(size):
            return DynamicBatching(int(size), parse_seconds(FLAG, wait))
    raise BadSetting(FLAG, f"{name!r} is none of continuous, static:32, dynamic:32:50ms and all")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0
