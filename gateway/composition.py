"""What a gateway is put together of, from one `GatewayConfig`: its composition root.

Whatever is opened is closed in the opposite order: first what answers requests, then what they
used, last the state.

Knows: which part is given what. Does not know: processes and signals (`main.py`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from engine.link.interface import Engine
from gateway.admin.routes import admin_router
from gateway.auth.auth import AdminAuthenticator, Authenticator
from gateway.auth.keyring import Keyring
from gateway.auth.running_requests import RunningRequests
from gateway.config import GatewayConfig, default_workers
from gateway.diagnosis.seen import SeenPrompts
from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.dialect import Dialect, ModelCard, RouteParts
from gateway.dialects.openai.dialect import OpenAI
from gateway.dialects.responses.dialect import Responses
from gateway.generation.answering import Answering
from gateway.generation.open_streams import OpenStreams
from gateway.http.about import about_router
from gateway.http.app import build_app
from gateway.http.body_memory import BodyMemory
from gateway.http.cors import Cors, origins_in
from gateway.http.error_dialect import Dialects
from gateway.http.health import health_router
from gateway.http.request_head import UNKNOWN_ROUTE
from gateway.http.server import Bind
from gateway.limits.home import LimitsHome, open_limits
from gateway.limits.permits import Permits
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.max_connections import OPERATOR, max_connections, open_files_limit
from gateway.prefixes.routes import prefixes_router
from gateway.prompts.admission import Admission
from gateway.prompts.fair_executor import FairExecutor
from gateway.prompts.text_memory import TextMemory
from gateway.prompts.verbatim_turns.turn_memory import TurnMemory
from gateway.prompts.verbatim_turns.verbatim import VerbatimTurns
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.sharing.partitions import Partitions
from gateway.sharing.prefix_tokens import PrefixTokens
from gateway.sharing.published import Published, PublishedParts
from gateway.sharing.remembered_turns import cleaned
from gateway.start_files import StartFiles, needed_to_start, read_start_files
from gateway.state.expiry import dropped_when_expired
from gateway.state.faults import FaultWatch
from gateway.state.home import Home, open_home
from gateway.state.reserved_room import ReservedRoom
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.tracing import Tracing, collector, exporting
from gateway.tenant_memory import TenantMemory
from gateway.usage.aggregator import UsageAggregator
from gateway.usage.routes import own_usage_router

# That are spoken; the first is the default.
DIALECTS: tuple[Dialect, ...] = (OpenAI(), Responses(), Anthropic())


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway put together, not yet listening."""

    binds: tuple[Bind, ...]
    streams: OpenStreams


@dataclass(frozen=True, slots=True)
class _State:
    """What is kept on the disk or in Redis."""

    files: StartFiles
    room: ReservedRoom
    home: Home
    limits: LimitsHome


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Who may come in, and who shares the cache with whom."""

    keyring: Keyring
    namespaces: Namespaces
    published: Published
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class _Front:
    """What all applications have in common."""

    metrics: GatewayMetrics
    dialects: Dialects
    access_log: AccessLog | None


@asynccontextmanager
async def composed(
    config: GatewayConfig,
    engine: Engine,
    shared_metrics: Path | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
) -> AsyncIterator[Gateway]:
    """The gateway of `config` in front of `engine`; everything it opens is closed at the end.

    `shared_metrics` is the directory in which several workers count together. The data directory
    must have been set up (`first_start`). Raises CannotStart for bad files.
    """
    most = max_connections(config, open_files_limit())
    async with AsyncExitStack() as stack:
        state = await _state(config, stack)
        sharing = await _sharing(config, state, engine, stack)
        aggregator = UsageAggregator(state.home.store, time.time)
        await stack.enter_async_context(aggregator.stored_regularly())
        stack.callback(state.room.end)
        await stack.enter_async_context(dropped_when_expired(state.home.store, time.time))
        metrics = GatewayMetrics(shared_metrics)
        watch = FaultWatch([state.home.watched, *state.limits.watched, state.room], metrics.faults)
        await stack.enter_async_context(watch.kept())
        bodies = BodyMemory(config.bounds)
        operator = AdminAuthenticator(state.files.secrets.pepper, state.files.admin_digest)
        running = RunningRequests(sharing.keyring)
        await stack.enter_async_context(running.checked())
        authenticator = Authenticator(sharing.keyring, operator, running)
        streams = OpenStreams(config.bounds.max_streams_per_tenant)
        admission, memories = await _admission(config, state, sharing, engine, stack)
        answering = Answering(engine, admission, metrics, aggregator, _tracing(config, stack))
        throttle = RefusalThrottle(time.monotonic)
        permits = Permits(state.limits.limiter, config.prices, streams, bodies, throttle)
        await stack.enter_async_context(permits.kept())
        parts = RouteParts(
            answering,
            ModelCard(config.model_name, engine, int(time.time())),
            config.bounds,
            authenticator,
            permits,
            state.home.store,
        )
        tenants = [
            *(dialect.router(parts) for dialect in dialects),
            prefixes_router(parts),
            own_usage_router(state.home.store, authenticator, time.time),
        ]
        admin = admin_router(
            state.home.store,
            sharing.keyring,
            engine,
            metrics,
            operator,
            sharing.published,
            bodies,
            sharing.partitions,
            memories,
            open_metrics=config.admin_port is not None,
        )
        shown = [health_router(engine, watch.worst), about_router(version("ratoon"))]
        front = _Front(metrics, Dialects(*dialects), _access_log(config, stack))
        binds = _binds(config, tenants, admin, shown, front, most)
        yield Gateway(binds, streams)


async def _state(config: GatewayConfig, stack: AsyncExitStack) -> _State:
    data_dir = Path(config.data_dir)
    with needed_to_start():
        files = read_start_files(config)
        room = ReservedRoom(data_dir)
        stack.callback(room.fill)  # with the room of the files that a full disk has lost last
        home = await stack.enter_async_context(open_home(data_dir, config, room))
        processes = config.replicas * (config.workers or default_workers(cores()))
        limits = open_limits(data_dir, room, home.link, processes=processes)
    return _State(files, room, home, limits)


async def _sharing(
    config: GatewayConfig, state: _State, engine: Engine, stack: AsyncExitStack
) -> _Sharing:
    store, files = state.home.store, state.files
    publishing = stack.enter_context(ThreadPoolExecutor(1, "publishing"))
    keyring = Keyring(store, files.secrets.pepper, time.time)
    index = PublishedIndex()
    namespaces = Namespaces(
        files.secrets.server_secret, share_all=config.share_all, published=index
    )
    reader = PrefixTokens(files.tokenizer, files.template)
    published = Published(PublishedParts(store, reader, namespaces, index, engine, publishing))
    are_apart = config.cache_sharing == "partitioned" and not config.share_all
    partitions = Partitions(store, engine, are_wanted=are_apart)
    await stack.enter_async_context(state.home.telling(keyring, published, partitions))
    await stack.enter_async_context(partitions.kept())
    await stack.enter_async_context(published.kept())
    return _Sharing(keyring, namespaces, published, partitions)


async def _admission(
    config: GatewayConfig, state: _State, sharing: _Sharing, engine: Engine, stack: AsyncExitStack
) -> tuple[Admission, Sequence[TenantMemory[Any]]]:
    """What makes prompts of requests, and the memories that a flush empties."""
    files, store = state.files, state.home.store
    turns = TurnMemory(config.bounds, time.monotonic)
    seen = SeenPrompts(config.bounds, time.monotonic)
    texts = TextMemory(config.bounds, time.monotonic)
    memories: tuple[TenantMemory[Any], ...] = (turns, seen, texts)
    for memory in memories:
        await stack.enter_async_context(cleaned(memory, store))
    admission = Admission(
        files.tokenizer,
        files.template,
        sharing.namespaces,
        lambda: engine.welcome,
        stack.enter_context(closing(FairExecutor(_threads()))),
        config.bounds,
        files.forms,
        VerbatimTurns(turns, files.forms, files.tokenizer),
        seen,
        texts,
    )
    return admission, (turns, texts)


def _binds(
    config: GatewayConfig,
    tenants: Sequence[APIRouter],
    operator: APIRouter,
    shown: Sequence[APIRouter],
    front: _Front,
    most: int,
) -> tuple[Bind, ...]:
    """One address for everything, or two when the operator's is apart; both have what is `shown`.

    Pages of other origins may read what the tenants' address answers.
    """
    cors = Cors(origins_in(config.cors_origins))

    def bind(
        routers: Sequence[APIRouter], host: str, port: int, connections: int, allows: Cors
    ) -> Bind:
        refused = partial(front.metrics.refused, UNKNOWN_ROUTE)
        app = build_app([*routers, *shown], front.metrics, front.dialects, allows, front.access_log)
        return Bind(app, front.dialects, host, port, connections, refused, allows)

    if config.admin_port is None:
        return (bind([*tenants, operator], config.host, config.port, most, cors),)
    return (
        bind(tenants, config.host, config.port, most, cors),
        bind([operator], config.admin_host, config.admin_port, OPERATOR, Cors()),
    )


def _access_log(config: GatewayConfig, stack: AsyncExitStack) -> AccessLog | None:
    """What is written of each request; None for nothing."""
    if config.access_log == "off":
        return None
    return stack.enter_context(AccessLog(config.access_log).written())


def _tracing(config: GatewayConfig, stack: AsyncExitStack) -> Tracing | None:
    """Traces to the collector that the config names; None without one."""
    if config.otlp_endpoint is None:
        return None
    tracer = stack.enter_context(exporting(collector(config.otlp_endpoint)))
    return Tracing(tracer, config.model_name)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _threads() -> int:
    return max(2, min(4, cores()))
