"""A router service at a socket, and the workers that ask it, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.router_process.client import RouterClient
from gateway.router_process.main import listening
from gateway.router_process.messages import KnownBlocks
from gateway.router_process.service import RouterService
from gateway.routing.prompt import RoutingRequest
from gateway.routing.remote_prefill import RemotePrefillLimits
from gateway.routing.route import RouteQuestion
from gateway.routing.routers.first_token import FirstTokenRouter
from tests.engine.rigs.rig import Clock

LIMITS = RemotePrefillLimits(least_tokens=64)
READY = ("a", "b")
LONG_S = 60.0  # seconds to wait for an expected answer, reached only by a test that hangs


@dataclass
class Office:
    """A router service, and its workers."""

    socket: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.router = FirstTokenRouter(self.clock)
        self.service = RouterService(self.router, self.known, LIMITS)

    def known(self) -> KnownBlocks:
        """Return the block counts that workers receive."""
        return KnownBlocks({name: self.router.known_blocks(name) for name in READY})

    def running(self) -> dict[str, int]:
        """Return the router's number of running requests at each replica."""
        return {name: self.router._loads.of(name).running for name in READY}

    def queued(self) -> dict[str, int]:
        """Return the router's number of waiting tokens at each replica."""
        return {name: self.router._loads.of(name).queued for name in READY}

    def freeze(self) -> None:
        """Stop reading workers' messages, like a stopped process."""
        for one in self.service._workers:
            assert one.channel._transport is not None
            one.channel._transport.pause_reading()

    def go_on(self) -> None:
        """Read all waiting messages, and those to come."""
        for one in self.service._workers:
            assert one.channel._transport is not None
            one.channel._transport.resume_reading()


@asynccontextmanager
async def open_office(
    directory: Path, workers: int, wait_s: float = LONG_S
) -> AsyncIterator[tuple[Office, Sequence[RouterClient]]]:
    """Run a router service with `workers` connected workers."""
    office = Office(directory / "router.sock")
    clients = [RouterClient(office.socket, LIMITS, wait_s=wait_s) for _ in range(workers)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(listening(office.service, office.socket))
        for client in clients:
            await stack.enter_async_context(client.kept())
        yield office, clients


def question(request: RoutingRequest, ready: Sequence[str] = READY) -> RouteQuestion:
    return RouteQuestion(request, ready)


async def settled(client: RouterClient) -> None:
    """Wait until the service has read this worker's messages."""
    await client.source(RoutingRequest("settled", 1), "a", {})


async def until_read() -> None:
    """Wait until the service has read the messages sent in this event loop."""
    for _ in range(20):
        await asyncio.sleep(0.001)
