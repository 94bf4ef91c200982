"""When the step under way ends, by how long steps like it took, and when the next has to be begun.

    host    | schedule, launch n+1 |  messages ...........  | schedule, launch n+2 |
    device  |  step n ...............| step n+1 ...............................| step n+2
                                                     begun by ^

A step that is launched early is one more that a newcomer waits for. One that is launched late
leaves the device without work. So the end is foretold by the shortest of the last steps of a
kind, or else of all with as many new tokens, and where nobody knows one there is no reason to
wait. A step that had ended before anybody looked was foretold too long, or the host was held up:
its kind is forgotten, and learned anew.

Knows: sizes of steps, seconds. Does not know: a clock, or who is waited for (`visitors.py`).
"""

from __future__ import annotations

from collections import deque
from statistics import median

from engine.step import Step

LAST = 8  # steps of a kind that are remembered, and launches
FEWEST = 2  # of a kind, before it is foretold
MARGIN_S = 0.001  # by which a step is launched earlier than launches take
SHORT = 4  # launches; a step that takes no longer is not worth waiting for
SIMILAR_TOKENS = 64  # new tokens; steps that differ by fewer are of a kind
SIMILAR_CONTEXT = 1024  # keys that prompts' tokens see, on average
SIMILAR_KEYS = 32768  # keys of all decodes
OVER_S = 1e-4  # who waits for less found the step already over
MOST_KINDS = 1024

_Kind = tuple[int, int, int]


class Timetable:
    """Ends foretold. One owner thread."""

    def __init__(self) -> None:
        self._took: dict[_Kind, deque[float]] = {}
        self._launches: deque[float] = deque(maxlen=LAST)

    def launched(self, seconds: float) -> None:
        """Deciding and launching a step took so long."""
        self._launches.append(seconds)

    def settled(self, step: Step, seconds: float, waited: float) -> None:
        """A step took so long, for the end of which the host waited."""
        kind = _kind(step)
        if waited < OVER_S:
            self._took.pop(kind, None)
            return
        if kind not in self._took:
            if len(self._took) >= MOST_KINDS:
                del self._took[next(iter(self._took))]
            self._took[kind] = deque(maxlen=LAST)
        self._took[kind].append(seconds)

    def due(self, step: Step, begun: float) -> float | None:
        """When the next step is to be decided, if `step` was begun then; None: at once."""
        took = self._least(_kind(step))
        if took is None or not self._launches:
            return None
        ahead = median(self._launches) + MARGIN_S
        return begun + took - ahead if took > SHORT * ahead else None

    def _least(self, kind: _Kind) -> float | None:
        """What a step of the kind takes at least, or else one of as many new tokens."""
        took = self._took.get(kind, ())
        if len(took) >= FEWEST:
            return min(took)
        known = (
            min(took)
            for (new, _, _), took in self._took.items()
            if new == kind[0] and len(took) >= FEWEST
        )
        return min(known, default=None)


def _kind(step: Step) -> _Kind:
    chunks = [row for row in step.rows if row.num_new > 1]
    new = sum(row.num_new for row in chunks)
    seen = sum(row.num_new * row.end for row in chunks) // max(new, 1)
    keys = sum(row.end for row in step.rows if row.num_new == 1)
    return new // SIMILAR_TOKENS, seen // SIMILAR_CONTEXT, keys // SIMILAR_KEYS
