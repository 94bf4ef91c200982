"""The scaler of a cluster, which adds and removes engines as `scaling` decides."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from cli.cluster.actor import EngineReport
from cli.cluster.placing import drain, remove
from cli.cluster.scaling import Fleet, ScalingBounds, Since, decide
from cli.echo import echo

Reports = Mapping[int, EngineReport | None]


class Scaler:
    """The scaler of one cluster. A failed engine counts as starting or ending."""

    def __init__(
        self,
        ray: Any,
        place: Callable[[int], object],
        bounds: ScalingBounds,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep to `bounds`. `place` is called with the number of an engine to start."""
        self._ray = ray
        self._place = place
        self._bounds = bounds
        self._monotonic = monotonic
        self._since = Since()

    def look(self, found: Reports) -> None:
        """Add or remove an engine if `scaling.decide` says so."""
        ended = [number for number, one in found.items() if one and one.state == "drained"]
        for number in ended:
            remove(self._ray, number)
        left = {number: one for number, one in found.items() if number not in ended}
        change, self._since = decide(fleet(left), self._since, self._bounds, self._monotonic())
        if change > 0:
            number = next(n for n in range(len(found) + 1) if n not in found)
            is_short = len(left) < self._bounds.least
            why = "there are too few" if is_short else "requests wait longer than they may"
            echo(f"engine {number}: added, {why}")
            self._place(number)
        elif change < 0:
            number = max(number for number, one in left.items() if is_ready(one))
            echo(f"engine {number}: leaves, the others are enough")
            drain(self._ray, number)


def fleet(found: Reports) -> Fleet:
    """Collect the engines' waits, counts and use for `scaling.decide`."""
    ready = [one for one in found.values() if one is not None and is_ready(one)]
    waits = [one.wait_s for one in ready if one.wait_s is not None]
    return Fleet(waits, len(found) - len(waits), sum(one.used or 0.0 for one in ready))


def is_ready(report: EngineReport | None) -> bool:
    """Return whether an engine takes requests and reports a predicted wait."""
    return report is not None and report.state == "ready" and report.wait_s is not None
