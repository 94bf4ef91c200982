"""`cluster.yaml`: the settings of a cluster's engines and of its gateway.

The file's keys are the flags of `ratoon engine` and of `ClusterFlags`, with underscores.
`options.config_file` reads and checks all files of settings.
"""

import inspect
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
from typer.models import OptionInfo

from cli.cluster.registry import REDIS_TIMEOUT_S
from cli.cluster.scaling import ScalingBounds
from cli.errors import BadSetting
from cli.options.config_file import Options, section_in, settings_in
from cli.options.engine_options import LoneEngineFlags
from cli.options.flags import field, flattened
from cli.options.options import ModelFlags
from cli.serving.compose import OF_RANKS, checked_redis_url
from engine.config import EngineConfig
from engine.link.address import MAX_PORT
from engine.models.checks import check_grid
from engine.models.errors import ModelError
from engine.models.grid import RankGrid
from gateway.config import Shared

# ports of an engine, for messages, heartbeats, and the exchange of KV blocks
PORTS = 3
# Flags of the gateway that are set outside the file's section `gateway`.
OF_THE_CLUSTER = frozenset(
    (
        "model",
        "data_dir",
        "socket",
        "link_key_file",
        "find_engines",
        "redis_url",
        "redis_password_file",
    )
)
_of_cluster = partial(field, panel="Cluster")


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The keys of cluster.yaml, without the keys for the engine."""

    engines: int = _of_cluster(1, "Engines to run.", min=1, max=1024)
    min_engines: int | None = _of_cluster(
        None, "Fewest engines, where their number follows the load. Default: engines.", min=1
    )
    max_engines: int | None = _of_cluster(
        None, "Maximum engines. Default: their number does not follow the load.", min=1, max=1024
    )
    target_wait_s: float = _of_cluster(
        2.0,
        "Seconds that a new request may wait: where it would wait longer in every engine, one is "
        "added, up to max_engines.",
        min=0.01,
    )
    num_gpus: float = _of_cluster(0.0, "GPUs of each engine.", min=0.0)
    num_cpus: float = _of_cluster(1.0, "CPU cores of each engine.", min=0.0)
    resources: dict[str, float] | None = _of_cluster(None, "Ray's own resources of each engine.")
    prefill_engines: int = _of_cluster(
        0, "Of the engines, how many compute prompts for the others. The others decode.", min=0
    )
    engine_port: int = _of_cluster(
        7300,
        "Port of the first engine on its machine; each engine has three ports of its own.",
        min=1,
        max=MAX_PORT,
    )
    link_key_file: Path | None = _of_cluster(
        None, "The key of the links, on every machine. Default: made in data_dir, for one machine."
    )
    redis_url: str | None = _of_cluster(
        None, "Redis with the state of the gateways. Default: SQLite in data_dir, for one machine."
    )
    redis_password_file: str | None = _of_cluster(
        None, "File with the password of redis_url, on every machine."
    )
    ray_address: str | None = _of_cluster(
        None, "Ray to use: HOST:PORT, or auto for the one that runs here. Default: one is started."
    )
    gateway: dict[str, Any] | None = _of_cluster(
        None, "A gateway to run beside this command, with these flags of ratoon gateway."
    )


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings in cluster.yaml. Paths are valid on every machine."""

    model: str
    data_dir: str
    engine: EngineConfig  # engine settings without the model, the address and the key
    shared: Shared
    engines: int
    # The first `prefill_engines` engines only prefill. If there are any, all others only decode.
    prefill_engines: int
    scaling: ScalingBounds | None  # None: the number of engines is fixed
    num_gpus: float
    num_cpus: float
    resources: dict[str, float]
    engine_port: int
    link_key_file: str | None
    ray_address: str | None
    gateway: dict[str, Any] | None

    @property
    def is_one_machine(self) -> bool:
        """True if the engines share state in files of this machine."""
        return self.shared.redis_url is None

    def port(self, number: int) -> int:
        """Return an engine's first port, which is the same on any machine."""
        return self.engine_port + PORTS * number


def read_settings(path: Path) -> ClusterSettings:
    """Read a file of settings. Raises BadConfig or BadSetting, which name the key."""
    groups: list[tuple[ModelFlags, EngineConfig, ClusterFlags]] = []

    def take(model: ModelFlags, engine: LoneEngineFlags, cluster: ClusterFlags) -> None:
        groups.append((model, engine, cluster))

    build = flattened(take)
    keys = inspect.signature(build).parameters
    given = settings_in(path, options_of(build.__annotations__))
    if (section := given.get("gateway")) is not None:
        given["gateway"] = section_in(path, "gateway", section, "gateway", OF_THE_CLUSTER)
    build(**{name: given.get(name, key.default) for name, key in keys.items()})
    return checked(*groups[0])


def checked(model: ModelFlags, engine: EngineConfig, cluster: ClusterFlags) -> ClusterSettings:
    """Return the settings. Raises BadSetting if values exclude each other."""
    shared = Shared(
        redis_url=cluster.redis_url,
        redis_password_file=cluster.redis_password_file,
        redis_timeout_s=REDIS_TIMEOUT_S,
    )
    checked_redis_url(shared)
    if cluster.redis_url is not None and cluster.link_key_file is None:
        raise BadSetting("link_key_file", "engines on several machines need one, on each of them")
    _check_ranks(cluster, engine)
    if engine.process.exchange is not None:
        raise BadSetting("exchange", "each engine has its own, at the third of its ports")
    _check_needs(cluster)
    scaling = _scaling(cluster)
    _check_roles(cluster, engine, cluster.engines if scaling is None else scaling.least)
    _check_ports(cluster, cluster.engines if scaling is None else scaling.most)
    return ClusterSettings(
        model=model.model,
        data_dir=str(model.data_dir.absolute()),
        engine=engine,
        shared=shared,
        engines=cluster.engines,
        prefill_engines=cluster.prefill_engines,
        scaling=scaling,
        num_gpus=cluster.num_gpus,
        num_cpus=cluster.num_cpus,
        resources=cluster.resources or {},
        engine_port=cluster.engine_port,
        link_key_file=None if cluster.link_key_file is None else str(cluster.link_key_file),
        ray_address=cluster.ray_address,
        gateway=cluster.gateway,
    )


def _check_ports(cluster: ClusterFlags, most: int) -> None:
    last = cluster.engine_port + PORTS * (most - 1)
    if last + PORTS - 2 > MAX_PORT:  # an engine's other ports follow its first port
        raise BadSetting("engine_port", f"the last engine's would be {last}")


def _check_ranks(cluster: ClusterFlags, engine: EngineConfig) -> None:
    try:
        check_grid(RankGrid(engine.ranks.tensor_parallel, engine.ranks.pipeline_parallel))
    except ModelError as error:
        raise BadSetting("tensor_parallel", str(error)) from error
    ranks = engine.ranks.num_ranks
    if 0 < cluster.num_gpus < ranks:
        by = "tensor_parallel"
        if engine.ranks.pipeline_parallel > 1:
            by += " x pipeline_parallel"
        raise BadSetting("num_gpus", f"{cluster.num_gpus:g} is less than {by}, {ranks}")


def _check_needs(cluster: ClusterFlags) -> None:
    if cluster.num_gpus > 1 and cluster.num_gpus % 1:
        raise BadSetting("num_gpus", f"{cluster.num_gpus:g} is no whole number")
    for resource, count in (cluster.resources or {}).items():
        if resource in ("CPU", "GPU"):
            raise BadSetting("resources", f"{resource} is num_{resource.lower()}s")
        if count < 0:
            raise BadSetting("resources", f"{resource} is {count:g}; it should be 0 or more")


def _check_roles(cluster: ClusterFlags, engine: EngineConfig, least: int) -> None:
    prefill = cluster.prefill_engines
    if engine.ranks.num_ranks > 1 and (prefill or engine.process.role == "prefill"):
        key = "prefill_engines" if prefill else "role"
        raise BadSetting(key, f"engines of several ranks {OF_RANKS}")
    if prefill >= least:
        raise BadSetting("prefill_engines", f"{prefill} of {least} engines leave none that answers")
    if prefill and engine.process.role != "both":
        raise BadSetting("role", "prefill_engines gives each engine its own")
    if engine.process.role == "prefill" and cluster.redis_url is None:
        raise BadSetting("role", "no engine of this machine would answer; see prefill_engines")


def _scaling(cluster: ClusterFlags) -> ScalingBounds | None:
    least, most = cluster.min_engines, cluster.max_engines
    if most is None:
        if least is not None:
            raise BadSetting("min_engines", "it needs max_engines")
        if cluster.target_wait_s != ClusterFlags().target_wait_s:
            raise BadSetting("target_wait_s", "it needs max_engines")
        return None
    least = cluster.engines if least is None else least
    if not least <= cluster.engines <= most:
        raise BadSetting(
            "engines",
            f"{cluster.engines} is not from min_engines ({least}) to max_engines ({most})",
        )
    return ScalingBounds(least, most, cluster.target_wait_s)


def options_of(hints: dict[str, Any]) -> Options:
    """List the keys with their types and bounds."""
    return {
        name: (kind, note)
        for name, hint in hints.items()
        for kind, *notes in [get_args(hint)]
        for note in notes
        if isinstance(note, OptionInfo)
    }
