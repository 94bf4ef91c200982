"""A router service at a socket, and workers that ask it, in one event loop."""

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
from gateway.routing.first_token import FirstTokenRouter
from gateway.routing.prompt import RoutingRequest
from gateway.routing.remote_prefill import RemotePrefillLimits
from gateway.routing.route import RouteQuestion
from tests.engine.rigs.rig import Clock

LIMITS = RemotePrefillLimits(least_tokens=64)
READY = ("a", "b")
LONG_S = 60.0  # to wait for an answer, where there is to be one


@dataclass
class Office:
    """One router service, and its workers."""

    socket: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.router = FirstTokenRouter(self.clock)
        self.service = RouterService(self.router, self.known, LIMITS)

    def known(self) -> KnownBlocks:
        """Return the block counts that workers are told."""
        return KnownBlocks({name: self.router.known_blocks(name) for name in READY})

    def running(self) -> dict[str, int]:
        """Requests that are under way at each replica, as the router has it."""
        return {name: self.router._loads.of(name).running for name in READY}

    def queued(self) -> dict[str, int]:
        """Tokens that are to be computed there."""
        return {name: self.router._loads.of(name).queued for name in READY}

    def freeze(self) -> None:
        """Read nothing that workers say, as a process that has been stopped."""
        for one in self.service._workers:
            assert one.channel._transport is not None
            one.channel._transport.pause_reading()

    def go_on(self) -> None:
        """Read all of it."""
        for one in self.service._workers:
            assert one.channel._transport is not None
            one.channel._transport.resume_reading()


@asynccontextmanager
async def open_office(
    directory: Path, workers: int, wait_s: float = LONG_S
) -> AsyncIterator[tuple[Office, Sequence[RouterClient]]]:
    """A service, and so many workers that are connected to it."""
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
    """Wait until the service has read what this worker has said."""
    await client.source(RoutingRequest("settled", 1), "a", {})


async def until_read() -> None:
    """Let what was sent in this loop be read."""
    for _ in range(20):
        await asyncio.sleep(0.001)
