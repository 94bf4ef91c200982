"""The gateway process: its composition root, which builds every part from one `GatewayConfig`.

Knows: which part is given what. Does not know: flags or environment variables; the config comes
as JSON in the first argument (`cli` writes it).
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from fastapi import APIRouter

from engine.client import EngineClient
from engine.interface import Engine
from gateway.admin.routes import admin_router
from gateway.admission import Admission
from gateway.answering import Answering
from gateway.app import build_app
from gateway.auth import AdminAuthenticator, Authenticator
from gateway.config import GatewayConfig, default_workers
from gateway.health import health_router
from gateway.keyring import Keyring
from gateway.limits.gate import LimitGate
from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import Limiter
from gateway.limits.redis import RedisLimiter
from gateway.limits.sqlite import SqliteLimiter
from gateway.logs import set_up_logging
from gateway.metrics import GatewayMetrics
from gateway.namespaces import Namespaces
from gateway.open_streams import OpenStreams
from gateway.openai.models import ModelCard
from gateway.openai.routes import openai_router
from gateway.otlp import collector, exporting
from gateway.own_directory import own_directory
from gateway.own_usage import own_usage_router
from gateway.prefix_tokens import PrefixTokens
from gateway.published import Published, PublishedParts
from gateway.published_index import PublishedIndex
from gateway.server import Bind, all_listen, make_server, serve
from gateway.shared_port import reserved
from gateway.spans import SpanTracing
from gateway.start_files import CannotStart, needed_to_start, read_start_files
from gateway.state.home import open_home
from gateway.state.redis_link import open_client
from gateway.tracing import NoTracing, Tracing
from gateway.usage import Tally
from gateway.worker import WorkerConfig, attached_to_parent
from gateway.workers import Workers

EXIT_CANNOT_START = 2
LIMITS_FILE = "limits.sqlite"
_METRICS = "ratoon-workers-"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway put together, not yet listening."""

    binds: tuple[Bind, ...]
    streams: OpenStreams


@dataclass(frozen=True, slots=True)
class Routers:
    """All routes, by who they are for."""

    tenants: Sequence[APIRouter]
    operator: APIRouter
    health: APIRouter


def main(arguments: Sequence[str]) -> int:
    """Run the gateway that `arguments[0]`, a GatewayConfig in JSON, describes.

    With several workers this process is their parent; a worker is given its `WorkerConfig`, in
    JSON, as a second argument. Returns the exit status.
    """
    _leave_no_core()
    config = msgspec.json.decode(arguments[0], type=GatewayConfig)
    set_up_logging(config.log_level)
    try:
        return _run(config, arguments[1] if len(arguments) > 1 else None)
    except CannotStart as error:
        _LOG.error("the gateway cannot start: %s", error)
        return EXIT_CANNOT_START


def _run(config: GatewayConfig, worker: str | None) -> int:
    if worker is not None:
        # Ctrl-C reaches the parent too, which passes it on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        uvloop.run(run_worker(config, msgspec.json.decode(worker, type=WorkerConfig)))
        return 0
    count = config.workers or default_workers(cores())
    if count > 1:
        return uvloop.run(run_workers(config, count))
    uvloop.run(run(config))
    return 0


def _leave_no_core() -> None:
    """Write no core dump when this process or a child crashes: it would hold prompts and keys.

    The limit is 1 byte, not 0: a kernel that pipes dumps to a program obeys no other limit.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


async def run(config: GatewayConfig) -> None:
    """Serve until a signal asks to end, with an engine behind `config.engine_socket`."""
    async with connected(config) as engine, composed(config, engine) as gateway:
        freeze_startup_objects()
        await serve([make_server(bind, config.bounds, config.grace_s) for bind in gateway.binds])


async def run_worker(config: GatewayConfig, worker: WorkerConfig) -> None:
    """Serve as one of several workers."""
    metrics = Path(worker.metrics_dir)
    async with connected(config) as engine, composed(config, engine, metrics) as gateway:
        freeze_startup_objects()
        servers = [
            make_server(bind, config.bounds, config.grace_s, shares_port=True)
            for bind in gateway.binds
        ]
        async with attached_to_parent(worker, all_listen(servers)):
            await serve(servers, (signal.SIGTERM,))


async def run_workers(config: GatewayConfig, count: int) -> int:
    """Keep `count` workers running until a signal asks to end; the exit status."""
    addresses = [(config.host, config.port)]
    if config.admin_port is not None:
        addresses.append((config.admin_host, config.admin_port))
    command = [sys.executable, *sys.orig_argv[1:]]
    with reserved(addresses), own_directory(_METRICS, "*.db") as metrics:
        return await Workers(command, count, str(metrics)).run()


@asynccontextmanager
async def connected(config: GatewayConfig) -> AsyncIterator[EngineClient]:
    """This process's link to the engine."""
    client = EngineClient(config.engine_socket, silence_s=config.engine_silence_s)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def composed(
    config: GatewayConfig, engine: Engine, shared_metrics: Path | None = None
) -> AsyncIterator[Gateway]:
    """The gateway of `config` in front of `engine`; everything it opens is closed at the end.

    `shared_metrics` is the directory in which several workers count together. The data directory
    must have been set up (`first_start`). Raises CannotStart for bad files.
    """
    data_dir = Path(config.data_dir)
    async with AsyncExitStack() as stack:
        with needed_to_start():
            files = read_start_files(config)
            home = await stack.enter_async_context(open_home(data_dir, config))
            limiter = make_limiter(config)
        secrets, tokenizer, template = files.secrets, files.tokenizer, files.template
        pool = stack.enter_context(ThreadPoolExecutor(_threads(), "admission"))
        keyring = Keyring(home.store, secrets.pepper, time.time)
        reader = PrefixTokens(tokenizer, template)
        namespaces, index = _sharing(config, secrets.server_secret)
        published = Published(PublishedParts(home.store, reader, namespaces, index, engine, pool))
        await stack.enter_async_context(home.telling(keyring, published))
        await stack.enter_async_context(published.kept())
        tally = Tally(home.store, time.time)
        await stack.enter_async_context(tally.stored_regularly())
        metrics = GatewayMetrics(shared_metrics)
        streams = OpenStreams(config.bounds.max_streams_per_tenant)
        gate = LimitGate(limiter, config.prices)
        await stack.enter_async_context(gate.kept())
        admission = Admission(
            tokenizer, template, namespaces, lambda: engine.welcome, pool, config.bounds
        )
        operator = AdminAuthenticator(secrets.pepper, files.admin_digest)
        authenticator = Authenticator(keyring, operator)
        tenants = openai_router(
            Answering(engine, admission, streams, gate, metrics, tally, _tracing(config, stack)),
            ModelCard(config.model_name, engine, int(time.time())),
            config.bounds,
            authenticator,
        )
        own_usage = own_usage_router(home.store, authenticator, time.time)
        admin = admin_router(
            home.store,
            keyring,
            engine,
            metrics,
            operator,
            published,
            open_metrics=config.admin_port is not None,
        )
        routers = Routers([tenants, own_usage], admin, health_router(engine))
        yield Gateway(_binds(config, routers, metrics), streams)


def make_limiter(config: GatewayConfig) -> Limiter:
    """Where limits are held: in Redis, or in a file that this machine's workers share."""
    if config.redis_url is None:
        return SqliteLimiter(Path(config.data_dir) / LIMITS_FILE)
    workers = config.workers or default_workers(cores())
    client = open_client(config, as_text=True)
    shared = RedisLimiter(client, timeout_s=config.redis_timeout_s)
    return GuardedLimiter(shared, replicas=config.replicas * workers)


def _sharing(config: GatewayConfig, secret: bytes) -> tuple[Namespaces, PublishedIndex]:
    """Who shares with whom, and what is published, which is nothing yet."""
    index = PublishedIndex()
    return Namespaces(secret, share_all=config.share_all, published=index), index


def _binds(config: GatewayConfig, routers: Routers, metrics: GatewayMetrics) -> tuple[Bind, ...]:
    """One address for everything, or two when the operator's is apart; both tell their health."""
    tenants, operator, health = routers.tenants, routers.operator, routers.health
    if config.admin_port is None:
        everything = build_app([*tenants, operator, health], metrics)
        return (Bind(everything, config.host, config.port),)
    return (
        Bind(build_app([*tenants, health], metrics), config.host, config.port),
        Bind(build_app([operator, health], metrics), config.admin_host, config.admin_port),
    )


def _tracing(config: GatewayConfig, stack: AsyncExitStack) -> Tracing:
    """Traces to the collector that the config names; none without one."""
    if config.otlp_endpoint is None:
        return NoTracing()
    tracer = stack.enter_context(exporting(collector(config.otlp_endpoint)))
    return SpanTracing(tracer, config.model_name)


def freeze_startup_objects() -> None:
    """Exempt all that exists now from garbage collection, whose pauses would delay every stream."""
    gc.collect()
    gc.freeze()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _threads() -> int:
    return min(4, cores())
