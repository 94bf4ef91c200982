"""The gateway process: serves alone, as one of several workers, or as their parent.

Knows: processes and signals. Does not know: what a gateway is made of (`composition.py`), flags or
environment variables: the config comes as JSON in the first argument (`cli` writes it).
"""

import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from engine.core_dumps import prevent_core_dumps
from gateway.config import GatewayConfig, cores, default_workers
from gateway.http.protocol.server import all_listen, make_server, reserved, serve
from gateway.processes.temp_directory import has_room, temp_directory
from gateway.processes.workers import WorkerConfig, Workers, attached_to_parent
from gateway.replicas.flushes import FlushReader
from gateway.startup.composition import composed
from gateway.startup.engine_links import connected
from gateway.startup.start_files import CannotStart
from gateway.telemetry.logs import set_up_logging

EXIT_CANNOT_START = 2
_METRICS = "ratoon-workers-"
_HELD = "*.[ds][bo]*"  # *.db, in which workers count, and *.sock, on which workers ask each other
_ROUTER = "gateway.router_process"
# Workers map their metrics files, and where the disk is full a map ends its process by a
# signal. In memory, no log or cache of other programs can fill the space.
_METRICS_PLACE = Path("/dev/shm")
_METRICS_BYTES = 16 << 20
_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the gateway that `arguments[0]`, a GatewayConfig in JSON, describes.

    With several workers this process is their parent; a worker is given its `WorkerConfig`, in
    JSON, as a second argument. Returns the exit status.
    """
    prevent_core_dumps()
    # Each text is tokenised in the calling thread, so that tenants do take turns.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    config = msgspec.json.decode(arguments[0], type=GatewayConfig)
    set_up_logging(config.log_level)
    try:
        return _run(config, arguments[1] if len(arguments) > 1 else None)
    except CannotStart as error:
        _LOG.error("the gateway cannot start: %s", error)
        return EXIT_CANNOT_START


def _run(config: GatewayConfig, worker: str | None) -> int:
    if worker is not None:
        # Ctrl-C reaches the parent too, which passes the signal on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        uvloop.run(run(config, msgspec.json.decode(worker, type=WorkerConfig)))
        return 0
    count = config.workers or default_workers(cores())
    if count > 1:
        return uvloop.run(run_workers(config, count))
    uvloop.run(run(config))
    return 0


async def run(config: GatewayConfig, worker: WorkerConfig | None = None) -> None:
    """Serve until a signal ends it, alone or as one of several workers.

    The engines are at `config.engines`.
    """
    metrics = None if worker is None else Path(worker.metrics_dir)
    router = None if worker is None or worker.router_socket is None else Path(worker.router_socket)
    flushes = FlushReader()
    async with (
        connected(config, flushes, router) as engine,
        composed(config, engine, metrics, flushes=flushes) as gateway,
    ):
        freeze_startup_objects()
        servers = [
            make_server(bind, config.bounds, config.grace_s, shares_port=worker is not None)
            for bind in gateway.binds
        ]
        if worker is None:
            await serve(servers)
            return
        async with attached_to_parent(worker, all_listen(servers)):
            await serve(servers, (signal.SIGTERM,))


async def run_workers(config: GatewayConfig, count: int) -> int:
    """Keep `count` workers running until a signal ends them; return the exit status.

    Before several engines a router process runs beside them.
    """
    addresses = [(config.host, config.port)]
    if config.admin_port is not None:
        addresses.append((config.admin_host, config.admin_port))
    command = [sys.executable, *sys.orig_argv[1:]]
    within = _METRICS_PLACE if has_room(_METRICS_PLACE, _METRICS_BYTES) else None
    with reserved(addresses), temp_directory(_METRICS, _HELD, within) as metrics:
        router = router_command(config) if config.has_replicas else None
        workers = Workers(command, count, metrics, router)
        return await workers.run()


def router_command(config: GatewayConfig) -> list[str]:
    """Return the router process's command without its `WorkerConfig`; it suits any directory."""
    return [sys.executable, "-P", "-m", _ROUTER, msgspec.json.encode(config).decode()]


def freeze_startup_objects() -> None:
    """Exempt all present objects from garbage collection, whose pauses would delay every stream."""
    gc.collect()
    gc.freeze()
