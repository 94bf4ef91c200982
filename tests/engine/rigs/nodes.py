"""Another machine, for engines of several: a process that shares no memory with this one.

On loopback it has an address of its own, so that what listens where can be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.ranks.nodes.config import NodeConfig
from tests.doubles.forks.process import ForkedProcess, forked_module
from tests.doubles.ports import two_free_ports
from tests.engine.rigs.ranks import ProcessRanks

HERE, THERE = "127.0.0.1", "127.0.0.2"


@dataclass(frozen=True)
class NodesAt:
    """Where other machines come to an engine of two, with which key."""

    place: str
    key_file: Path
    wait_s: float = 60.0
    silence_s: float = 5.0

    def over(self, config: EngineConfig) -> EngineConfig:
        """The config over two machines."""
        return replace(
            config,
            nnodes=2,
            node_address=self.place,
            node_key_file=str(self.key_file),
            node_wait_s=self.wait_s,
            node_silence_s=self.silence_s,
        )


def nodes_at(directory: Path) -> NodesAt:
    """A place that is free, with a key that is new."""
    return NodesAt(f"tcp://{HERE}:{two_free_ports()}", new_key_file(directory))


def new_key_file(directory: Path) -> Path:
    """A key in the directory."""
    path = directory / "link.key"
    path.write_bytes(zmq.curve_keypair()[1])
    path.chmod(0o600)
    return path


def node_ranks(config: EngineConfig) -> ProcessRanks:
    """Ranks of which some are elsewhere. The death of one is that of no test."""
    return ProcessRanks(config, lambda status: None)


@contextmanager
def running_node(
    at: NodesAt, model_dir: Path, directory: Path, *, key_file: Path | None = None
) -> Iterator[ForkedProcess]:
    """The second machine, with its disk in `directory` and its log in `node.log` there."""
    directory.mkdir(exist_ok=True)
    config = NodeConfig(
        join=at.place,
        node_rank=1,
        host=THERE,
        key_file=str(key_file or at.key_file),
        model_dir=str(model_dir),
        disk_cache_dir=str(directory / "blocks"),
        silence_s=at.silence_s,
    )
    command = ["engine.ranks.nodes", msgspec.json.encode(config).decode()]
    process = forked_module(command, directory / "node.log")
    try:
        yield process
    finally:
        process.kill()
        process.wait()
