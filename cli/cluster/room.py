"""A check that the machines of a Ray cluster have room for the requested engines.

Ray                       outcome
-------------------------------------------------------------------------------------------
ran before the command    an engine that fits no machine waits, and its status line says so
the command starts it     an engine that fits no machine, or more engines than fit, are refused
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cli.cluster.settings import ClusterSettings
from cli.errors import BadSetting

_RESOLUTION = 1e-4
_KEYS = {"CPU": "num_cpus", "GPU": "num_gpus"}


@dataclass(frozen=True, slots=True)
class RayMachine:
    """A machine of a Ray cluster."""

    address: str
    resources: Mapping[str, float]


def needs(settings: ClusterSettings) -> dict[str, float]:
    """Return the resources that an engine needs on its machine, by Ray's names."""
    each = {"CPU": settings.num_cpus, "GPU": settings.num_gpus, **settings.resources}
    return {resource: count for resource, count in each.items() if count}


def lacking(settings: ClusterSettings, machines: Sequence[RayMachine]) -> BadSetting | None:
    """Return an error if no machine has enough of a resource for an engine."""
    for resource, count in needs(settings).items():
        most = max((one.resources.get(resource, 0.0) for one in machines), default=0.0)
        if most < count:
            return _lack(resource, f"an engine needs {count:g}, and no machine has more", most)
    return None


def check_room(settings: ClusterSettings, machines: Sequence[RayMachine]) -> None:
    """Raise BadSetting unless the present machines of a Ray have room for all engines."""
    if (lack := lacking(settings, machines)) is not None:
        raise lack
    most, key = settings.engines, "engines"
    if settings.scaling is not None:
        most, key = settings.scaling.most, "max_engines"
    for resource, count in needs(settings).items():
        there = sum(one.resources.get(resource, 0.0) for one in machines)
        if most * count > there + _RESOLUTION:
            what = f"{most} need {most * count:g} in all ({_key(resource)} {count:g} each)"
            raise BadSetting(key, f"{what}, and this machine has {there:g}")


def _lack(resource: str, what: str, count: float) -> BadSetting:
    return BadSetting(_key(resource), f"{what}: {count:g}")


def _key(resource: str) -> str:
    return _KEYS.get(resource, f"resources.{resource}")
