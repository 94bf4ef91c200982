"""What Ray runs on each further machine of an engine: its node, in a thread.

The engine may be placed on another machine at any time. So it is asked where it is, again and
again, and the node's process is started anew when that has changed, or when it has ended.

Knows: the process and the engine's address. Does not know: Ray; it is made an actor in `placing`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cli.cluster.actor import blocks_of
from cli.cluster.settings import ClusterSettings
from cli.errors import CliError
from cli.serving import parent_death
from cli.serving.child import python_command, python_environment
from cli.serving.link_key import link_key_file
from cli.serving.model_check import checked_source
from engine.link.address import nodes_at
from engine.ranks.nodes.config import NodeConfig

EngineAt = Callable[[], str | None]
"""The address of the engine now; None: it has none, or does not answer."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds."""

    look_s: float = 1.0  # between looks at the engine and the process
    pause_s: float = 5.0  # after an end of the process


class EngineNode:
    """One further machine of one engine, for ever: an actor ends by being taken away."""

    def __init__(
        self,
        settings: bytes,
        number: int,
        node_rank: int,
        host: str,
        engine_at: EngineAt,
        pace: Pace | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """`settings`: a `ClusterSettings` in JSON; `host`: this machine's address.

        `end` ends the actor's process, with a status, where something is wrong with it.
        """
        self._pace = pace or Pace()
        self._settings = msgspec.json.decode(settings, type=ClusterSettings)
        self._number = number
        self._node_rank = node_rank
        self._host = host
        self._engine_at = engine_at
        self._end = end
        self.pid = 0  # of the node's process; 0: there is none
        threading.Thread(target=self._run, name="engine-node", daemon=True).start()

    def _run(self) -> None:
        try:
            self._follow()
        except Exception:  # noqa: BLE001  the actor's loop: without it no node would ever come
            traceback.print_exc()
            self._end(1)  # Ray starts another one

    def _follow(self) -> None:
        while True:
            engine = self._engine_at()
            if engine is not None:
                try:
                    self._run_for(engine)
                except CliError as error:
                    sys.stderr.write(f"{error.message}\n")
                time.sleep(self._pace.pause_s)
            time.sleep(self._pace.look_s)

    def _run_for(self, engine: str) -> None:
        """Until the node ends, or the engine is elsewhere. Raises CliError."""
        config = msgspec.json.encode(self.config(engine)).decode()
        tied = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())]
        command = [*tied, *python_command("engine.ranks.nodes", config)]
        with subprocess.Popen(command, env=python_environment()) as process:
            self.pid = process.pid
            while process.poll() is None and self._engine_at() in (engine, None):
                time.sleep(self._pace.look_s)
            process.kill()  # and the kernel its ranks
        self.pid = 0

    def config(self, engine: str) -> NodeConfig:
        """Of a node of the engine at this address; raises CliError where it cannot run here."""
        settings = self._settings
        at = nodes_at(engine, settings.engine.num_ranks)
        given = settings.link_key_file
        key_file = link_key_file(
            at, None if given is None else Path(given), Path(settings.data_dir), make=False
        )
        assert key_file is not None, "it is an address over TCP"
        source = checked_source(settings.model, settings.engine)
        return NodeConfig(
            join=at,
            node_rank=self._node_rank,
            host=self._host,
            key_file=key_file,
            model_dir=str(source.directory),
            disk_cache_dir=blocks_of(settings, self._number),
            silence_s=settings.engine.node_silence_s,
        )
