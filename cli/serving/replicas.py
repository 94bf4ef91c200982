"""Each engine's share of a machine: memory, GPUs, sockets, directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.errors import BadSetting
from cli.models.machine import VISIBLE, Machine
from cli.serving.compose import OF_RANKS
from cli.supervision.serving_state import ENGINE, ChildName
from engine.config import EngineConfig
from engine.link.address import exchange_at
from engine.link.messages import Role


def child_names(count: int) -> list[ChildName]:
    """Name the engine processes: `engine`, or `engine-0` and so on, in the gateway's order."""
    return [ENGINE] if count == 1 else [f"{ENGINE}-{number}" for number in range(count)]


def sockets(socket: str, count: int) -> list[str]:
    """Return the Unix socket of each engine, in the directory of `socket`."""
    return [str(_numbered(Path(socket), number)) for number in range(count)]


def replica_configs(config: EngineConfig, count: int, of: Machine) -> list[EngineConfig]:
    """Divide a machine among `count` engines. `config` is for a single engine.

    Engines of one rank fetch blocks from each other. The first engine uses the disk directory of a
    single engine, and so finds its KV blocks.
    """
    if count == 1:
        return [config]
    shared = config.changed(
        host_memory_bytes=of.free_bytes // count,
        host_cache_gib=None
        if config.cache.host_cache_gib is None
        else config.cache.host_cache_gib / count,
        host_cache_tokens=None
        if config.cache.host_cache_tokens is None
        else config.cache.host_cache_tokens // count,
        disk_cache_gib=config.cache.disk_cache_gib / count,
        num_threads=max(1, (config.process.num_threads or of.num_cores - 1) // count),
    )
    return [
        shared.changed(
            socket=socket,
            exchange=exchange_at(socket) if config.ranks.num_ranks == 1 else None,
            disk_cache_dir=_directory(config.cache.disk_cache_dir, number),
        )
        for number, socket in enumerate(sockets(config.process.socket, count))
    ]


def with_roles(configs: Sequence[EngineConfig], prefill: int) -> list[EngineConfig]:
    """Give the first `prefill` engines the role of computing prompts for the other engines.

    Raises BadSetting if no other engine is left, or if engines cannot fetch blocks.
    """
    if not prefill:
        return list(configs)
    if configs[0].ranks.num_ranks > 1:
        raise BadSetting("--prefill-replicas", f"engines of several ranks {OF_RANKS}")
    if prefill >= len(configs):
        raise BadSetting(
            "--prefill-replicas",
            f"{prefill} of {len(configs)} engines (--replicas) leave none that answers: give "
            f"--replicas {prefill + 1} or more",
        )
    roles: tuple[Role, Role] = ("decode", "prefill")
    return [one.changed(role=roles[number < prefill]) for number, one in enumerate(configs)]


def environments(config: EngineConfig, count: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Return each engine's additional environment. Raises BadSetting for too few GPUs."""
    if count == 1 or config.process.device == "cpu" or not gpus:
        return [{} for _ in range(count)]
    each = config.ranks.num_ranks
    if len(gpus) < count * each:
        need = "a GPU" if each == 1 else f"{each} GPUs"
        raise BadSetting(
            "--replicas",
            f"{count} engines need {need} each, and {len(gpus)} can be seen; --device cpu runs "
            "them on the CPU",
        )
    return [{VISIBLE: ",".join(gpus[n * each : (n + 1) * each])} for n in range(count)]


def _numbered(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def _directory(directory: str | None, number: int) -> str | None:
    return None if directory is None else str(_numbered(Path(directory), number))
