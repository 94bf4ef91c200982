"""Engines as Ray actors: placed, queried, removed. This is the only module that imports Ray.

Actors are detached: they outlive the process that placed them. Actors are found by their names,
`engine-0` and so on.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from cli.cluster.actor import EngineActor, EngineReport
from cli.cluster.head import ANSWER_S, NoRay, check_is_head, is_there
from cli.cluster.room import RayMachine
from cli.cluster.settings import ClusterSettings

NAMESPACE = "ratoon"
_ERROR = re.compile(r"[A-Za-z_][\w.]*: ")
OBJECT_STORE_BYTES = 80 << 20  # Ray's minimum; the object store stays empty

Ray: TypeAlias = Any


@contextmanager
def ray_at(address: str | None) -> Iterator[Ray]:
    """Connect to Ray at `address`, or start a Ray that ends with this process. Raises NoRay."""
    ray = _imported()
    if address is not None:
        check_is_head(address)
    local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(
            address=address or "local",
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            **({} if address else local),
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise NoRay(
            f"Ray at {address or 'this machine'}: {' '.join(str(error).split())}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def has_ended(ray: Ray) -> bool:
    """Return whether Ray has ended. A call to an ended Ray retries for a minute, then exits."""
    return not is_there(ray.get_runtime_context().gcs_address)


def machines(ray: Ray) -> list[RayMachine]:
    """List Ray's present machines."""
    return [
        RayMachine(node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def engine_names(ray: Ray) -> list[int]:
    """List the numbers of the engines that have an actor."""
    found = ray.util.list_named_actors()
    names = [name.removeprefix(_PREFIX) for name in found if name.startswith(_PREFIX)]
    return sorted(int(name) for name in names if name.isdigit())


def place(ray: Ray, settings: ClusterSettings, number: int) -> Any:
    """Create an engine's actor, which Ray starts once a machine has enough free resources.

    An existing actor keeps its settings. Returns Ray's reference to the actor's start, for
    `why_not_made`.
    """
    # An engine needs no gateway settings, which may contain the admin key.
    said = msgspec.json.encode(replace(settings, gateway=None))
    try:
        actor = _options(ray, settings, number).remote(said, number)
    except ValueError as error:
        raise NoRay(f"Ray refuses an engine: {' '.join(str(error).split())}") from error
    return actor.__ray_ready__.remote()


def why_not_made(ray: Ray, made: Any) -> str:
    """Return why Ray could not start the actor, or "".

    `made` is the result of `place`.
    """
    try:
        ray.get(made, timeout=0)
    except ray.exceptions.RayActorError as error:
        return _not_made(str(error)) if error.actor_init_failed else ""
    except ray.exceptions.GetTimeoutError:
        return ""
    return ""


def reports(ray: Ray, numbers: Sequence[int]) -> dict[int, EngineReport | None]:
    """Fetch each engine's report, or None for an engine without a machine or an answer."""
    asked = {}
    for number in numbers:
        try:
            asked[number] = ray.get_actor(f"{_PREFIX}{number}").report.remote()
        except ValueError:  # the actor has ended meanwhile
            continue
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_S) if asked else None
    return {number: _answer(ray, answer) for number, answer in asked.items()}


def drain(ray: Ray, number: int) -> None:
    """Ask an engine to unregister and to end. The engine's actor stays until `remove`."""
    with suppress(ValueError):
        ray.get_actor(f"{_PREFIX}{number}").drain.remote()


def remove(ray: Ray, number: int) -> None:
    """Remove an engine's actor, and all processes in it."""
    with suppress(ValueError):  # another command may have removed the actor
        ray.kill(ray.get_actor(f"{_PREFIX}{number}"), no_restart=True)


class NodeActor(EngineActor):
    """The engine's actor, with the address of its machine."""

    def __init__(self, settings: bytes, number: int) -> None:
        super().__init__(settings, number, _imported().util.get_node_ip_address())


_PREFIX = "engine-"


def _options(ray: Ray, settings: ClusterSettings, number: int) -> Any:
    return ray.remote(NodeActor).options(
        name=f"{_PREFIX}{number}",
        lifetime="detached",
        get_if_exists=True,
        num_cpus=settings.num_cpus,
        num_gpus=settings.num_gpus,
        resources=settings.resources,
        max_restarts=-1,
        max_concurrency=4,
    )


def _not_made(said: str) -> str:
    errors = [line for line in said.splitlines() if _ERROR.match(line)]
    told = errors[-1] if errors else " ".join(said.split())
    return f"Ray cannot make it on its machine, which needs this version of ratoon: {told}"


def _answer(ray: Ray, answer: Any) -> EngineReport | None:
    try:
        return msgspec.json.decode(ray.get(answer, timeout=0), type=EngineReport)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
        return None


def _imported() -> Ray:
    try:
        import ray
    except ImportError as error:
        raise NoRay("Ray is not installed: pip install 'ratoon[cluster]'") from error
    return ray
