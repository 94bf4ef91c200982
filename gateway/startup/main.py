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
from typing import TYPE_CHECKING

import msgspec
import uvloop

from engine.system.core_dumps import prevent_core_dumps
from gateway.config import GatewayConfig, cores, default_workers
from gateway.http.protocol.shared_port import reserved
from gateway.processes.attached import WorkerConfig
from gateway.processes.temp_directory import has_room, temp_directory
from gateway.processes.worker_metrics import VARIABLE
from gateway.processes.workers import END_SIGNALS, Workers
from gateway.startup.cannot_start import CannotStart
from gateway.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from gateway.prompts.model_chats import ModelChats

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

    With several workers this process is their parent. A worker that replaces another is given its
    `WorkerConfig`, in JSON, as a second argument. Returns the exit status.
    """
    prevent_core_dumps()
    # The tokenizer gets no separate threads, so it runs in the threads that tenants share. numpy
    # gets none, so that a process that forks workers has one thread.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    config = msgspec.json.decode(arguments[0], type=GatewayConfig)
    count = config.workers or default_workers(cores())
    try:
        if len(arguments) > 1:
            return _serve(config, msgspec.json.decode(arguments[1], type=WorkerConfig))
        return run_workers(config, count) if count > 1 else _serve(config)
    except CannotStart as error:
        _LOG.error("the gateway cannot start: %s", error)
        return EXIT_CANNOT_START


def run_workers(config: GatewayConfig, count: int) -> int:
    """Keep `count` workers running until a signal ends them; return the exit status.

    With several engines, a router process also runs. The first workers are forked from this process
    and return their own exit status. They share the memory of the modules and of the tokenizer.
    """
    addresses = [(config.host, config.port)]
    if config.admin_port is not None:
        addresses.append((config.admin_host, config.admin_port))
    command = [sys.executable, *sys.orig_argv[1:]]
    router = router_command(config) if config.has_replicas else None
    within = _METRICS_PLACE if has_room(_METRICS_PLACE, _METRICS_BYTES) else None
    set_up_logging(config.log_level, by_thread=False)
    with reserved(addresses):
        chats = _import_and_read(config)
        # A signal now waits for `Workers.run`: it must not leave the directory behind, and a Ctrl-C
        # during a fork would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        with temp_directory(_METRICS, _HELD, within) as metrics:
            os.environ[VARIABLE] = str(metrics)
            workers = Workers(command, count, metrics, router)
            worker = workers.fork()
            if worker is None:
                set_up_logging(config.log_level)
                return uvloop.run(workers.run())
    return _serve(config, worker, chats)


def _import_and_read(config: GatewayConfig) -> "ModelChats":
    """Import the modules that serve, and read the tokenizer and template, which are no secrets."""
    # lets prometheus_client write counters to files; the value is read when a worker counts
    os.environ[VARIABLE] = ""
    _import_serving()
    from gateway.startup.start_files import read_model_chats

    chats = read_model_chats(config)
    gc.freeze()  # collecting garbage would write to the memory that workers share
    return chats


def _serve(
    config: GatewayConfig,
    worker: WorkerConfig | None = None,
    chats: "ModelChats | None" = None,
) -> int:
    """Serve in this process until a signal ends it; return the exit status."""
    if worker is not None:
        # Workers ignore Ctrl-C, since it also reaches the parent, which passes the signal on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    set_up_logging(config.log_level)
    _import_serving()
    from gateway.startup.process import run

    uvloop.run(run(config, worker, chats))
    return 0


def _import_serving() -> None:
    """Import the modules that serve. Garbage collection at this point would only take time."""
    gc.disable()
    from gateway.startup.lean_imports import spare_unused_imports

    spare_unused_imports()
    import gateway.startup.process  # noqa: F401

    gc.freeze()
    gc.enable()


def router_command(config: GatewayConfig) -> list[str]:
    """Return the router process's command, to which the caller adds a `WorkerConfig`."""
    return [sys.executable, "-P", "-m", _ROUTER, msgspec.json.encode(config).decode()]
