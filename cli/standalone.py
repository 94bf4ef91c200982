"""`ratoon gateway` and `ratoon engine`: one process alone, under a supervisor of one's own.

Each command composes its config and becomes the process (exec): signals and exit status go
straight to whoever started it.

Knows: the order of a start. Does not know: what the processes do.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from cli.bounds_options import BoundsFlags
from cli.child import python_command, python_environment
from cli.compose import engine_config, gateway_config, with_disk
from cli.engine_options import EngineFlags, EngineGraceFlags
from cli.gateway_options import AdminKeyFlags, GatewayFlags
from cli.installation import SOCKET_NAME, first_start
from cli.model_source import resolve
from cli.options import ModelFlags, SocketFlags
from cli.price_options import PriceFlags


def gateway(
    model: ModelFlags,
    socket: SocketFlags,
    admin: AdminKeyFlags,
    gateway: GatewayFlags,
    bounds: BoundsFlags,
    prices: PriceFlags,
) -> None:
    """Run the gateway alone: HTTP, keys, tenants, prompts. Needs no torch.

    For your own process supervisor, or to keep the gateway up while the engine is replaced. It
    waits for an engine at --socket, and answers 503 until there is one.

    Example:

        ratoon gateway --model ~/models/qwen3-8b --socket /run/ratoon/engine.sock
    """
    source = resolve(model.model, "dummy")  # of a hub model, all but the weights
    place = meeting_place(model, socket)
    config = gateway_config(source, model.data_dir, place, gateway, bounds, prices)
    first_start(model.data_dir, admin.admin_key, config)
    become("gateway", config)


def engine(
    model: ModelFlags, socket: SocketFlags, engine: EngineFlags, grace: EngineGraceFlags
) -> None:
    """Run the engine alone: it owns the accelerator and the cache.

    For your own process supervisor. It serves the gateways that connect to --socket, and has no
    HTTP interface.

    Example:

        ratoon engine --model ~/models/qwen3-8b --socket /run/ratoon/engine.sock
    """
    source = resolve(model.model, engine.load_format)
    place = meeting_place(model, socket)
    config = engine_config(source, place, with_disk(engine, model.data_dir), grace.grace_s)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    become("engine", config)


def meeting_place(model: ModelFlags, socket: SocketFlags) -> Path:
    """The socket of --socket, or the one in the data directory."""
    return socket.socket or model.data_dir.absolute() / SOCKET_NAME


def become(module: str, config: msgspec.Struct) -> None:
    """Replace this process by `python -m module CONFIG`; does not return."""
    command = python_command(module, msgspec.json.encode(config).decode())
    os.execve(command[0], command, python_environment())
