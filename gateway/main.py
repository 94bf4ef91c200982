"""The gateway process: everything made and put together from one `GatewayConfig`.

Knows: which part is given what. Does not know: flags or environment variables; its one argument
is the config as JSON (`cli` writes it).
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from fastapi import APIRouter

from engine.client import Engine, EngineClient
from gateway.admin.routes import admin_router
from gateway.admission import Admission, Namespaces
from gateway.answering import Answering
from gateway.app import build_app
from gateway.auth import AdminAuthenticator, Authenticator
from gateway.chat_template import ChatTemplate
from gateway.config import GatewayConfig
from gateway.first_start import STATE_FILE, admin_digest, load_admin_key
from gateway.health import health_router
from gateway.keyring import Keyring
from gateway.logs import set_up_logging
from gateway.metrics import GatewayMetrics
from gateway.open_streams import OpenStreams
from gateway.openai.models import ModelCard
from gateway.openai.routes import openai_router
from gateway.secrets import load_secrets
from gateway.server import Bind, make_server, serve
from gateway.state.sqlite import SqliteStore
from gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway put together, not yet listening."""

    binds: tuple[Bind, ...]
    streams: OpenStreams


def main(arguments: Sequence[str]) -> int:
    """Run the gateway that `arguments[0]`, a GatewayConfig in JSON, describes."""
    config = msgspec.json.decode(arguments[0], type=GatewayConfig)
    set_up_logging(config.log_level)
    uvloop.run(run(config))
    return 0


async def run(config: GatewayConfig) -> None:
    """Serve until a signal asks to end, with an engine behind `config.engine_socket`."""
    client = EngineClient(config.engine_socket)
    await client.start()
    try:
        async with composed(config, client) as gateway:
            set_aside()
            await serve(
                [make_server(bind, config.bounds, config.grace_s) for bind in gateway.binds]
            )
    finally:
        await client.close()


@asynccontextmanager
async def composed(config: GatewayConfig, engine: Engine) -> AsyncIterator[Gateway]:
    """The gateway of `config` before an engine; what it holds open is closed at the end.

    The data directory must have been set up (`first_start`). Raises OSError, ValueError or
    PrivateFileError when the model's or the installation's files are not good.
    """
    model_dir, data_dir = Path(config.model_dir), Path(config.data_dir)
    secrets = load_secrets(data_dir)
    async with AsyncExitStack() as stack:
        store = SqliteStore(data_dir / STATE_FILE)
        stack.push_async_callback(store.close)
        pool = stack.enter_context(ThreadPoolExecutor(_threads(), "admission"))
        keyring = Keyring(store, secrets.pepper, time.time)
        metrics = GatewayMetrics()
        streams = OpenStreams(config.bounds.max_streams_per_key)
        admission = Admission(
            Tokenizer.load(model_dir),
            ChatTemplate.load(model_dir),
            Namespaces(secrets.server_secret, share_all=config.share_all),
            lambda: engine.welcome,
            pool,
            config.bounds,
        )
        tenants = openai_router(
            Answering(engine, admission, streams, metrics),
            ModelCard(config.model_name, engine, int(time.time())),
            config.bounds,
            Authenticator(keyring),
        )
        operator = admin_router(
            store,
            keyring,
            engine,
            metrics,
            AdminAuthenticator(
                secrets.pepper, admin_digest(secrets.pepper, load_admin_key(data_dir))
            ),
            open_metrics=config.admin_port is not None,
        )
        yield Gateway(_binds(config, tenants, operator, health_router(engine), metrics), streams)


def _binds(
    config: GatewayConfig,
    tenants: APIRouter,
    operator: APIRouter,
    health: APIRouter,
    metrics: GatewayMetrics,
) -> tuple[Bind, ...]:
    """One address for everything, or two when the operator's is apart; both tell their health."""
    if config.admin_port is None:
        everything = build_app([tenants, operator, health], metrics)
        return (Bind(everything, config.host, config.port),)
    return (
        Bind(build_app([tenants, health], metrics), config.host, config.port),
        Bind(build_app([operator, health], metrics), config.admin_host, config.admin_port),
    )


def set_aside() -> None:
    """What is here now stays; looking through it for garbage would hold every stream up."""
    gc.collect()
    gc.freeze()


def _threads() -> int:
    return min(4, os.cpu_count() or 1)
