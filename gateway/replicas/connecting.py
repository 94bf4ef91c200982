"""The links of this process to the engines of the gateway's config."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from engine.link.address import address, is_tcp
from engine.link.gateway_end.client import EngineClient
from engine.link.interface import Engine
from engine.link.tcp.curve import LinkKey, read_link_key
from gateway.config import GatewayConfig
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.flushes import FlushReader
from gateway.routing.route import Routing


@asynccontextmanager
async def one_engine(config: GatewayConfig, flushes: FlushReader) -> AsyncIterator[Engine]:
    """Connect the config's only engine, which may start later.

    The engine first does the `flushes` that it missed.
    """
    [engine] = config.engines
    async with AsyncExitStack() as stack:
        client = EngineClient(
            engine,
            silence_s=config.engine_silence_s,
            key=_key(config, engine),
            flushes=flushes.read,
        )
        await _start(client, stack)
        yield client


def replica_client(
    config: GatewayConfig, engines: EngineSet, flushes: FlushReader | None, name: str, at: str
) -> EngineClient:
    """Make a client of the replica `name` of `engines`, at the address `at`, without starting it.

    If `flushes` is None the client sends no requests, and the engine need not flush first. Raises
    ValueError if `at` is no address, or is a TCP address and there is no key. Raises BadLinkKey.
    """
    address(at)
    key = _key(config, at)
    if is_tcp(at) and key is None:
        raise ValueError(f"{at}: there is no key for links over TCP")
    return EngineClient(
        at,
        silence_s=config.engine_silence_s,
        key=key,
        on_cache_events=engines.listener(name),
        flushes=None if flushes is None else flushes.read,
    )


@asynccontextmanager
async def replicas(
    config: GatewayConfig, routing: Routing, flushes: FlushReader | None
) -> AsyncIterator[EngineSet]:
    """Connect the config's replicas. Replicas found in the state join them (`finding`).

    `flushes` is passed to `replica_client`.
    """
    engines = EngineSet({}, routing)
    async with AsyncExitStack() as stack:
        for number, at in enumerate(config.engines):
            client = replica_client(config, engines, flushes, str(number), at)
            await _start(client, stack)
            engines.join(str(number), client)
        await stack.enter_async_context(engines.kept())
        yield engines


def _key(config: GatewayConfig, engine: str) -> LinkKey | None:
    if config.link_key_file is None or not is_tcp(engine):
        return None
    return read_link_key(Path(config.link_key_file))


async def _start(client: EngineClient, stack: AsyncExitStack) -> None:
    await client.start()
    stack.push_async_callback(client.close)
