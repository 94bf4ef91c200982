"""The gateway process: everything made and put together from one `GatewayConfig`.

Knows: which part is given what. Does not know: flags or environment variables; its one argument
is the config as JSON (`cli` writes it).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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
from gateway.config import GatewayConfig, default_workers
from gateway.first_start import STATE_FILE, admin_digest, load_admin_key
from gateway.health import health_router
from gateway.keyring import Keyring
from gateway.logs import set_up_logging
from gateway.metrics import GatewayMetrics
from gateway.open_streams import OpenStreams
from gateway.openai.models import ModelCard
from gateway.openai.routes import openai_router
from gateway.secrets import load_secrets
from gateway.server import Bind, all_listen, make_server, serve
from gateway.shared_port import reserved
from gateway.state.sqlite import SqliteStore
from gateway.tokenizer import Tokenizer
from gateway.worker import Seat, on_the_line
from gateway.workers import Workers


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway put together, not yet listening."""

    binds: tuple[Bind, ...]
    streams: OpenStreams


def main(arguments: Sequence[str]) -> int:
    """Run the gateway that `arguments[0]`, a GatewayConfig in JSON, describes.

    With several workers this process is their parent; a worker has its `Seat`, in JSON, as
    second argument.
    """
    config = msgspec.json.decode(arguments[0], type=GatewayConfig)
    set_up_logging(config.log_level)
    if len(arguments) > 1:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent passes it on
        uvloop.run(work(config, msgspec.json.decode(arguments[1], type=Seat)))
        return 0
    count = config.workers or default_workers(cores())
    if count > 1:
        return uvloop.run(run_workers(config, count))
    uvloop.run(run(config))
    return 0


async def run(config: GatewayConfig) -> None:
    """Serve until a signal asks to end, with an engine behind `config.engine_socket`."""
    async with connected(config) as engine, composed(config, engine) as gateway:
        set_aside()
        await serve([make_server(bind, config.bounds, config.grace_s) for bind in gateway.binds])


async def work(config: GatewayConfig, seat: Seat) -> None:
    """Serve as one of several workers."""
    metrics = Path(seat.metrics_dir)
    async with connected(config) as engine, composed(config, engine, metrics) as gateway:
        set_aside()
        servers = [
            make_server(bind, config.bounds, config.grace_s, shares_port=True)
            for bind in gateway.binds
        ]
        async with on_the_line(seat, all_listen(servers)):
            await serve(servers, (signal.SIGTERM,))


async def run_workers(config: GatewayConfig, count: int) -> int:
    """Keep `count` workers running until a signal asks to end; the exit status."""
    addresses = [(config.host, config.port)]
    if config.admin_port is not None:
        addresses.append((config.admin_host, config.admin_port))
    command = [sys.executable, *sys.orig_argv[1:]]
    with reserved(addresses), TemporaryDirectory(prefix="ratoon-metrics-") as metrics:
        return await Workers(command, count, metrics).run()


@asynccontextmanager
async def connected(config: GatewayConfig) -> AsyncIterator[EngineClient]:
    """This process's link to the engine."""
    client = EngineClient(config.engine_socket)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def composed(
    config: GatewayConfig, engine: Engine, shared_metrics: Path | None = None
) -> AsyncIterator[Gateway]:
    """The gateway of `config` before an engine; what it holds open is closed at the end.

    `shared_metrics` is where several workers count together. The data directory must have been
    set up (`first_start`). Raises OSError, ValueError or
    PrivateFileError when the model's or the installation's files are not good.
    """
    model_dir, data_dir = Path(config.model_dir), Path(config.data_dir)
    secrets = load_secrets(data_dir)
    async with AsyncExitStack() as stack:
        store = SqliteStore(data_dir / STATE_FILE)
        stack.push_async_callback(store.close)
        pool = stack.enter_context(ThreadPoolExecutor(_threads(), "admission"))
        keyring = Keyring(store, secrets.pepper, time.time)
        metrics = GatewayMetrics(shared_metrics)
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


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _threads() -> int:
    return min(4, cores())
