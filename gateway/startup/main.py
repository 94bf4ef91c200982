"""The gateway process: serves alone, as one of several workers, or as their parent.

The config comes as JSON in the first argument, which `cli` writes.

Elsewhere: what a gateway is made of (`composition.py`).
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

from engine.system.core_dumps import prevent_core_dumps
from gateway.config import GatewayConfig, cores, default_workers
from gateway.http.protocol.shared_port import reserved
from gateway.processes.attached import WorkerConfig
from gateway.processes.temp_directory import has_room, temp_directory
from gateway.processes.workers import Workers
from gateway.startup.cannot_start import CannotStart
from gateway.telemetry.logs import set_up_logging

EXIT_CANNOT_START = 2
_METRICS = "ratoon-workers-"
# pattern of the files in a temporary directory: *.db (metrics of workers) and *.sock (sockets
# between workers)
_HELD = "*.[ds][bo]*"
_ROUTER = "gateway.router_process"
# Workers map their metrics files into memory. On a full disk, a write to a mapped file would end
# the worker by a signal. In /dev/shm, no other program's log or cache fills the space.
_METRICS_PLACE = Path("/dev/shm")
_METRICS_BYTES = 16 << 20
_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the gateway that `arguments[0]`, a GatewayConfig in JSON, describes.

    With several workers this process is their parent. A worker is given its `WorkerConfig`, in
    JSON, as a second argument. Returns the exit status.
    """
    prevent_core_dumps()
    # The tokenizer gets no separate threads, so it runs in the threads that tenants share.
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
        # Workers ignore Ctrl-C, since it also reaches the parent, which passes the signal on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _serve(config, msgspec.json.decode(worker, type=WorkerConfig))
    count = config.workers or default_workers(cores())
    if count > 1:
        return uvloop.run(run_workers(config, count))
    return _serve(config, None)


def _serve(config: GatewayConfig, worker: WorkerConfig | None) -> int:
    """Serve in this process until a signal ends it.

    Modules for serving are imported here, because the parent of workers would hold 60 MiB of them
    for nothing. Imported modules stay, so collecting garbage among them would only take time.
    """
    gc.disable()
    from gateway.startup.lean_imports import spare_unused_imports

    spare_unused_imports()
    from gateway.startup.process import run

    gc.freeze()
    gc.enable()
    uvloop.run(run(config, worker))
    return 0


async def run_workers(config: GatewayConfig, count: int) -> int:
    """Keep `count` workers running until a signal ends them; return the exit status.

    With several engines, a router process also runs.
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
    """Return the router process's command, to which the caller adds a `WorkerConfig`."""
    return [sys.executable, "-P", "-m", _ROUTER, msgspec.json.encode(config).decode()]
