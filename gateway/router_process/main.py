"""The router process's entry point: its engines, its socket, and its end.

The parent of the workers (`gateway.processes.workers`) starts the router process, watches its
heartbeat and starts it again. The router process gets the same `WorkerConfig` as the workers. The
router process reads only the gateway's settings about engines: their addresses, or that the state
has them.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from prometheus_client import CollectorRegistry

from engine.link.tcp.curve import BadLinkKey
from engine.system.core_dumps import prevent_core_dumps
from gateway.config import GatewayConfig
from gateway.processes.attached import WorkerConfig, attached_to_parent
from gateway.processes.periodic import repeated
from gateway.replicas.connecting import replica_client, replicas
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.finding import FoundEngines
from gateway.router_process.messages import KnownBlocks
from gateway.router_process.service import RouterService
from gateway.routing.route import OwnRouting
from gateway.routing.routers.by_name import router_by_name
from gateway.state.home import open_home
from gateway.state.identity import WrongState
from gateway.state.private_file import PrivateFileError
from gateway.state.sqlite.file import DatabaseFault
from gateway.state.sqlite.schema import SchemaTooNew
from gateway.telemetry.logs import set_up_logging
from gateway.telemetry.routing_metrics import RoutingMetrics

KNOWN_EVERY_S = 1.0
EXIT_CANNOT_START = 2

# Errors of a bad link key, or of state that is damaged, unreachable or of another installation.
_CANNOT_START = (BadLinkKey, DatabaseFault, PrivateFileError, SchemaTooNew, WrongState, OSError)
_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the router process by a GatewayConfig and a WorkerConfig in JSON; return its exit status.

    A router process that cannot start is started again, since a missing file may exist by then.
    """
    prevent_core_dumps()
    config = msgspec.json.decode(arguments[0], type=GatewayConfig)
    set_up_logging(config.log_level)
    # Ctrl-C also reaches the parent, which ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        uvloop.run(run(config, msgspec.json.decode(arguments[1], type=WorkerConfig)))
    except _CANNOT_START as error:
        _LOG.error("the router process cannot run: %s", error)
        return EXIT_CANNOT_START
    return 0


async def run(config: GatewayConfig, worker: WorkerConfig) -> None:
    """Answer workers until SIGTERM, at the socket that `worker` names."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if worker.router_socket is None:
        raise ValueError("router_socket is missing")
    async with (
        routed(config) as service,
        listening(service, Path(worker.router_socket)),
        attached_to_parent(worker, asyncio.sleep(0)),
    ):
        await stopping.wait()


@asynccontextmanager
async def routed(config: GatewayConfig) -> AsyncIterator[RouterService]:
    """Open the engines, whose cache events the router receives, and the service of the router."""
    router = router_by_name(config.router, time.monotonic)
    async with replicas(config, OwnRouting(router), None) as engines:
        engines.count_with(RoutingMetrics(CollectorRegistry()))
        async with found(config, engines):
            yield RouterService(router, lambda: KnownBlocks(_known_blocks(engines)))


@asynccontextmanager
async def found(config: GatewayConfig, engines: EngineSet) -> AsyncIterator[None]:
    """Let engines that are registered in the state join, if the config says so."""
    if not config.find_engines:
        yield
        return
    connect = partial(replica_client, config, engines, None)
    async with (
        open_home(Path(config.data_dir), config) as home,
        FoundEngines(engines, home.store, connect, time.monotonic).kept(),
    ):
        yield


@asynccontextmanager
async def listening(service: RouterService, path: Path) -> AsyncIterator[None]:
    """Listen for workers at a Unix socket while this context is open. Replace a removed socket."""
    create = partial(asyncio.get_running_loop().create_unix_server, service.meet, str(path))
    server = await create()

    async def look() -> None:
        nonlocal server
        await asyncio.sleep(KNOWN_EVERY_S)
        service.tell_known()
        if _is_removed(path):
            with suppress(OSError):  # the directory is gone, so no worker could connect
                anew = await create()
                server.close()
                server = anew
                _LOG.warning("the socket of the router process was removed, and is there again")

    try:
        async with repeated(look, "router-look"):
            yield
    finally:
        server.close()
        service.close()


def _is_removed(path: Path) -> bool:
    return not path.exists()


def _known_blocks(engines: EngineSet) -> dict[str, int]:
    return {name: one.known_blocks for name, one in engines.replicas.items()}
