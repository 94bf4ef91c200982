"""The links of this process to its engines, and the choice of its router."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from engine.link.interface import Engine
from gateway.config import GatewayConfig
from gateway.replicas.connecting import one_engine, replicas
from gateway.replicas.flushes import FlushReader
from gateway.router_process.client import RouterClient
from gateway.routing.route import OwnRouting, Routing
from gateway.routing.routers.by_name import router_by_name


@asynccontextmanager
async def connected(
    config: GatewayConfig, flushes: FlushReader, router_socket: Path | None = None
) -> AsyncIterator[Engine]:
    """Connect the engine, or all replicas as one.

    Engines may start later, and first do `flushes`. The router process at `router_socket` chooses
    among replicas. Without a router process, this process chooses.
    """
    if not config.has_replicas:
        async with one_engine(config, flushes) as engine:
            yield engine
        return
    async with (
        _routing(config, router_socket) as routing,
        replicas(config, routing, flushes) as engines,
    ):
        yield engines


@asynccontextmanager
async def _routing(config: GatewayConfig, router_socket: Path | None) -> AsyncIterator[Routing]:
    if router_socket is None:
        yield OwnRouting(router_by_name(config.router, time.monotonic))
        return
    client = RouterClient(router_socket)
    async with client.kept():
        yield client
