"""`ratoon engine --register`: an engine and its host, both ended by a signal."""

import asyncio
import signal
from functools import partial
from pathlib import Path

from cli.cluster.host import EngineHost
from cli.cluster.registry import REDIS_TIMEOUT_S, make_state, open_registry
from cli.echo import echo
from cli.errors import BadSetting
from cli.options.engine_options import RegisterFlags
from cli.serving.compose import checked_redis_url
from cli.supervision.supervisor import describe_status
from engine.config import EngineConfig
from engine.link.address import address
from engine.process import DRAIN_SIGNAL
from gateway.config import Shared

_EVERYWHERE = ("tcp://0.0.0.0:", "tcp://[::]:", "tcp://*:")


def host_engine(config: EngineConfig, data_dir: Path, flags: RegisterFlags) -> int:
    """Run the engine until its end or a signal, and return the exit status.

    The status is 1 after a signal. SIGTERM ends the engine within its grace period. SIGUSR1 ends it
    once its requests have ended. Raises BadSetting.
    """
    shared = Shared(
        redis_url=flags.redis_url,
        redis_password_file=flags.redis_password_file,
        redis_timeout_s=REDIS_TIMEOUT_S,
    )
    checked_redis_url(shared)
    make_state(data_dir, shared)
    return asyncio.run(
        _host(config, advertised(config.process.socket, flags.advertise), data_dir, shared)
    )


def advertised(socket: str, given: str | None) -> str:
    """Return the address for gateways. Raises BadSetting if gateways could not reach it."""
    place = given or socket
    try:
        path = address(place).path
    except ValueError as error:
        raise BadSetting("--advertise", str(error)) from error
    if place.startswith(_EVERYWHERE):
        raise BadSetting(
            "--advertise",
            f"name the address that gateways are to use: {place} is all of this machine's",
        )
    return place if path is None else str(path.absolute())


async def _host(config: EngineConfig, place: str, data_dir: Path, shared: Shared) -> int:
    loop, stops = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    async with open_registry(data_dir, shared) as registry:
        host = EngineHost(config, place, registry, partial(echo, err=True))

        def stop(*, drain: bool) -> None:
            stops.add(asyncio.create_task(host.stop(drain=drain)))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, partial(stop, drain=False))
        loop.add_signal_handler(DRAIN_SIGNAL, partial(stop, drain=True))
        status = await host.run()
    if status != 0:
        echo(f"ratoon: the engine {describe_status(status)}", err=True)
    return status if status >= 0 else 1
