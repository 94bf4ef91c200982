"""Predicts when the step under way ends, and so when the next has to be decided and launched.

    host    | schedule, launch n+1 |  messages ...........  | schedule, launch n+2 |
    device  |  step n ...............| step n+1 ...............................| step n+2
                                                     begun by ^

A step that is launched early is one more that a newcomer waits for; one that is launched late
leaves the device without work. The prediction is the shortest of the last steps of the same kind,
or else of all kinds with as many new tokens; without one, the next step is not delayed. If a step
had already ended when the host came to wait for it, the prediction was too long, or the host was
delayed: the step counts as one that took somewhat less. When the next one began is then not known,
so that one is neither predicted nor learned from (`launches`).

Knows: sizes of steps, seconds. Does not know: a clock, or whom a delay is for (`visitors.py`).
"""

from __future__ import annotations

from collections import deque
from statistics import median

from engine.step import Step

NUM_REMEMBERED = 8  # durations of a kind of step, and of launches
MIN_STEPS = 2  # of a kind, before its end is predicted
MARGIN_S = 0.001  # beyond the time that a launch takes
SHORT = 4  # times as long as a launch: a step that takes no longer is not worth a delay
MISSED = 7 / 8  # of the time until the host looked: what a step that was over by then counts as
SIMILAR_TOKENS = 64  # new tokens; steps that differ by fewer are of a kind
SIMILAR_CONTEXT = 1024  # keys that prompts' tokens see, on average
SIMILAR_KEYS = 32768  # keys of all decodes
MAX_KINDS = 1024

_Kind = tuple[int, int, int]


class Timetable:
    """How long kinds of steps took. One owner thread."""

    def __init__(self) -> None:
        self._took: dict[_Kind, deque[float]] = {}
        self._launches: deque[float] = deque(maxlen=NUM_REMEMBERED)

    def launched(self, seconds: float) -> None:
        """Note how long the host took to decide and launch a step."""
        self._launches.append(seconds)

    def settled(self, step: Step, seconds: float) -> None:
        """Note that the device took `seconds` for `step`."""
        self._note(_kind(step), seconds)

    def missed(self, step: Step, most: float) -> None:
        """Note that `step` was over at some time before the host looked, after `most` seconds."""
        self._note(_kind(step), MISSED * most)

    def due(self, step: Step, begun: float) -> float | None:
        """When the next step is to be decided, if `step` began at `begun`; None: at once."""
        took = self._least(_kind(step))
        if took is None or not self._launches:
            return None
        ahead = median(self._launches) + MARGIN_S
        return begun + took - ahead if took > SHORT * ahead else None

    def _note(self, kind: _Kind, seconds: float) -> None:
        if kind not in self._took:
            if len(self._took) >= MAX_KINDS:
                del self._took[next(iter(self._took))]
            self._took[kind] = deque(maxlen=NUM_REMEMBERED)
        self._took[kind].append(seconds)

    def _least(self, kind: _Kind) -> float | None:
        """The least that a step of the kind took, or else one of as many new tokens."""
        took = self._took.get(kind, ())
        if len(took) >= MIN_STEPS:
            return min(took)
        known = (
            min(took)
            for (new, _, _), took in self._took.items()
            if new == kind[0] and len(took) >= MIN_STEPS
        )
        return min(known, default=None)


def _kind(step: Step) -> _Kind:
    chunks = [row for row in step.rows if row.num_new > 1]
    new = sum(row.num_new for row in chunks)
    seen = sum(row.num_new * row.end for row in chunks) // max(new, 1)
    keys = sum(row.end for row in step.rows if row.num_new == 1)
    return new // SIMILAR_TOKENS, seen // SIMILAR_CONTEXT, keys // SIMILAR_KEYS
