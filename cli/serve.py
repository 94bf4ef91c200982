"""`ratoon serve`: gateway and engine together.

Knows: the order of a start. Does not know: how the processes are watched (`watch`, `supervisor`).
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from cli.bounds_options import BoundsFlags
from cli.child import python_command
from cli.compose import admin_url, base_url, engine_config, gateway_config, with_disk
from cli.engine_options import ENGINE_DEFAULTS, EngineFlags
from cli.gateway_options import AdminKeyFlags, GatewayFlags
from cli.greeting import greeting
from cli.installation import (
    SOCKET_NAME,
    check_port_free,
    first_start,
    runtime_directory,
)
from cli.model_source import resolve
from cli.options import ModelFlags
from cli.price_options import PriceFlags
from cli.screen import open_screen
from cli.supervisor import ChildName, Policy
from cli.watch import Watch, Watched

_STOP_MARGIN_S = 5.0
_PROBE_TIMEOUT_S = 2.0
# Not "stalled": such an engine may go on, and the gateway gives it up if it does not.
_READINESS = {"ready": True, "not_ready": False}


class _Health(msgspec.Struct, frozen=True):
    status: str


def serve(
    model: ModelFlags,
    admin: AdminKeyFlags,
    gateway: GatewayFlags,
    engine: EngineFlags,
    bounds: BoundsFlags,
    prices: PriceFlags,
) -> None:
    """Serve a model: gateway and engine together.

    Starts both, restarts the engine when it dies, and prints the URL and a first call once the
    model is loaded. The first start makes the data directory with an admin key and the keys of
    two demo tenants in keys.env. Ctrl-C or SIGTERM lets open streams finish first.

    Examples: the embedded demo model; your own on a GPU, for the whole network:

        ratoon serve

        ratoon serve --model Qwen/Qwen3-8B --dtype bfloat16 --host 0.0.0.0
    """
    source = resolve(model.model, engine.load_format)
    check_ports(gateway)
    url = base_url(gateway.host, gateway.port)
    with runtime_directory() as directory:
        socket = directory / SOCKET_NAME
        config = gateway_config(source, model.data_dir, socket, gateway, bounds, prices)
        start = first_start(model.data_dir, admin.admin_key, config)
        watched = Watched(
            commands=commands(
                engine_config(source, socket, with_disk(engine, model.data_dir)), config
            ),
            is_ready=partial(engine_is_ready, readiness_url(gateway)),
            policy=Policy(
                drain_s=gateway.grace_s + _STOP_MARGIN_S,
                stop_s=ENGINE_DEFAULTS.grace_s + engine.spill_grace_s + _STOP_MARGIN_S,
            ),
        )
        screen = open_screen(f"loading {source.name}", greeting(url, source.name, start.keys_file))
        try:
            asyncio.run(Watch(watched, screen).run())
        finally:
            screen.close()


def commands(engine: msgspec.Struct, gateway: msgspec.Struct) -> dict[ChildName, list[str]]:
    """The command lines of both processes. Others can see them, so configs contain no secrets."""
    return {
        "engine": python_command("engine", msgspec.json.encode(engine).decode()),
        "gateway": python_command("gateway", msgspec.json.encode(gateway).decode()),
    }


def check_ports(gateway: GatewayFlags) -> None:
    """BadSetting if a port is taken: another server's /readyz must not be mistaken for ours."""
    check_port_free("--port", gateway.host, gateway.port)
    if gateway.admin_port is not None:
        check_port_free("--admin-port", gateway.admin_host, gateway.admin_port)


def readiness_url(gateway: GatewayFlags) -> str:
    """Where the gateway says whether its engine takes requests."""
    admin_port = gateway.admin_port
    return admin_url(gateway.host, gateway.port, gateway.admin_host, admin_port) + "/readyz"


async def engine_is_ready(url: str) -> bool | None:
    """Whether the gateway's /readyz says that the engine is ready.

    None: it does not answer, or the engine's process stands still.
    """
    # Imported at the first question, beside the engine's own start: it takes 0.3 s to load.
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            health = msgspec.json.decode(await response.read(), type=_Health)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return None
    return _READINESS.get(health.status)
