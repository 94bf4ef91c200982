"""The engines that a command has placed, and the errors of engines that Ray could not place.

Ray forgets an actor that it could not make, for example on a machine with another version of this
package. Only the process that placed the actor gets Ray's error.

The module `scaling` decides how many engines should run.
"""

from typing import Any

from cli.cluster.actor import EngineReport
from cli.cluster.placing import engine_names, place, reports, why_not_made
from cli.cluster.settings import ClusterSettings


class PlacedEngines:
    """The engines of one cluster, including those that other commands have placed."""

    def __init__(self, ray: Any, settings: ClusterSettings) -> None:
        self._ray = ray
        self._settings = settings
        self._to_be_made: dict[int, Any] = {}
        self._not_made: dict[int, str] = {}

    def place(self, number: int) -> None:
        """Place the engine with this number. Raises NoRay."""
        self._to_be_made[number] = place(self._ray, self._settings, number)
        self._not_made.pop(number, None)

    def reports(self) -> dict[int, EngineReport | None]:
        """Return all engines' reports by number. An engine that Ray could not place has failed."""
        found = reports(self._ray, engine_names(self._ray))
        for number, made in self._to_be_made.items():
            if why := why_not_made(self._ray, made):
                self._not_made[number] = why
        for number in self._not_made:
            self._to_be_made.pop(number, None)
        for number in [n for n, one in found.items() if one and one.state == "ready"]:
            self._not_made.pop(number, None)  # another command has placed the engine since
        for number, why in self._not_made.items():
            found[number] = EngineReport(state="failed", address="", pid=0, why=why)
        return dict(sorted(found.items()))
