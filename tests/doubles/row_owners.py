"""The sequences of a step's rows, for doubles and tests. A runner is given only slot numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.sequences.sequence import Sequence
from engine.step import Step

Running = Callable[[], Iterable[Sequence]]


def owners_of(step: Step, running: Iterable[Sequence]) -> list[Sequence]:
    """Return each row's sequence, at the step's launch, or an empty list if no sequence runs."""
    by_lease = {one.lease_id: one for one in running}
    return [by_lease[row.lease_id] for row in step.rows] if by_lease else []
