"""One process of the gateway, which serves alone or as one of several workers.

Elsewhere: what a gateway is made of (`composition.py`), and the parent of workers (`main.py`).
"""

import gc
import signal
from pathlib import Path

from gateway.config import GatewayConfig
from gateway.http.protocol.server import all_listen, make_server, serve
from gateway.processes.attached import WorkerConfig, attached_to_parent
from gateway.prompts.model_chats import ModelChats
from gateway.replicas.flushes import FlushReader
from gateway.startup.composition import composed
from gateway.startup.engine_links import connected


async def run(
    config: GatewayConfig, worker: WorkerConfig | None = None, chats: ModelChats | None = None
) -> None:
    """Serve, alone or as one of several workers, until a signal ends this process.

    The engines are at `config.engines`. Without `chats`, the tokenizer and template are read.
    """
    metrics = None if worker is None else Path(worker.metrics_dir)
    router = None if worker is None or worker.router_socket is None else Path(worker.router_socket)
    flushes = FlushReader()
    async with (
        connected(config, flushes, router) as engine,
        composed(config, engine, metrics, flushes=flushes, chats=chats) as gateway,
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


def freeze_startup_objects() -> None:
    """Exempt all present objects from garbage collection, since its pauses would delay streams."""
    gc.collect()
    gc.freeze()
