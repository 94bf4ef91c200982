"""What a gateway is put together of, from one `GatewayConfig`: its composition root.

Whatever is opened is closed in the opposite order: first what answers requests, then what they
used, last the state.

Knows: which part is given what. Does not know: processes and signals (`main.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from engine.link.interface import Engine
from gateway.admin.routes import admin_router
from gateway.auth.auth import AdminAuthenticator, Authenticator, MetricsAuthenticator
from gateway.auth.running_requests import RunningRequests
from gateway.bounded_engine import BoundedEngine
from gateway.config import GatewayConfig, cores
from gateway.diagnosis.misses import LastMisses
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
from gateway.limits.permits import Permits
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.max_connections import OPERATOR, max_connections, open_files_limit
from gateway.opened import KeptState, SharedCache, open_sharing, open_state
from gateway.overview.history import History
from gateway.overview.known import Known, ToldWorker
from gateway.overview.refusals import LastRefusals
from gateway.overview.routes import Watched
from gateway.overview.siblings import Siblings
from gateway.page.api_docs import api_docs_router
from gateway.page.files import API, PageFiles
from gateway.page.routes import SignInParts, operator_page_router, usage_page_router
from gateway.page.sessions import Sessions, secret_of
from gateway.prefixes.routes import prefixes_router
from gateway.prompts.admission import Admission
from gateway.prompts.fair_executor import FairExecutor
from gateway.prompts.text_memory import TextMemory
from gateway.prompts.verbatim_turns.turn_memory import TurnMemory
from gateway.prompts.verbatim_turns.verbatim import VerbatimTurns
from gateway.replicas.connecting import replica_client
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.finding import FoundEngines
from gateway.replicas.flushes import FlushReader
from gateway.sharing.remembered_turns import cleaned
from gateway.start_files import StartFiles
from gateway.state.expiry import dropped_when_expired
from gateway.state.faults import FaultWatch
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
class _PageSessions:
    """Who is signed in to the two pages."""

    operator: Sessions
    tenant: Sessions


@dataclass(frozen=True, slots=True)
class _Front:
    """What all applications have in common."""

    metrics: GatewayMetrics
    dialects: Dialects
    access_log: AccessLog | None
    refusals: LastRefusals


@asynccontextmanager
async def composed(
    config: GatewayConfig,
    engine: Engine,
    shared_metrics: Path | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
    flushes: FlushReader | None = None,
) -> AsyncIterator[Gateway]:
    """The gateway of `config` in front of `engine`; everything it opens is closed at the end.

    `shared_metrics` is the directory in which several workers count together. `flushes` is what
    engines that connect wait for: it is told where the state is. The data directory
    must have been set up (`first_start`). Raises CannotStart for bad files.
    """
    most = max_connections(config, open_files_limit())
    async with AsyncExitStack() as stack:
        state = await open_state(config, stack)
        flushes = flushes or FlushReader()
        flushes.found(state.home.store)
        sharing = await open_sharing(config, state, engine, stack)
        aggregator = UsageAggregator(state.home.store, time.time)
        await stack.enter_async_context(aggregator.stored_regularly())
        stack.callback(state.room.end)
        await stack.enter_async_context(dropped_when_expired(state.home.store, time.time))
        vllm_model = config.model_name if config.vllm_metric_names else None
        metrics = GatewayMetrics(shared_metrics, vllm_model)
        if isinstance(engine, EngineSet):
            engine.count_moves(metrics.moved)
            await _find_engines(config, engine, flushes, state, stack)
        watch = FaultWatch([state.home.watched, *state.limits.watched, state.room], metrics.faults)
        await stack.enter_async_context(watch.kept())
        bodies = BodyMemory(config.bounds)
        pages = _page_sessions(state.files)
        operator = AdminAuthenticator(
            state.files.secrets.pepper, state.files.admin_digest, pages.operator
        )
        running = RunningRequests(sharing.keyring)
        await stack.enter_async_context(running.checked())
        authenticator = Authenticator(sharing.keyring, operator, running)
        streams = OpenStreams(config.bounds.max_streams_per_tenant)
        misses = LastMisses(time.time)
        admission, memories = await _admission(config, state, sharing, engine, misses, stack)
        tracing = _tracing(config, stack)
        answering = Answering(engine, admission, metrics, aggregator, tracing, misses)
        throttle = RefusalThrottle(time.monotonic)
        permits = Permits(state.limits.limiter, config.prices, streams, bodies, throttle)
        await stack.enter_async_context(permits.kept())
        parts = RouteParts(
            answering,
            ModelCard(config.model_name, engine, int(time.time()), state.files.defaults),
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
        history = History(BoundedEngine(engine), metrics, time.time)
        await stack.enter_async_context(history.kept())
        worker, refusals = ToldWorker(os.getpid(), time.time()), LastRefusals()
        known = Known(worker, refusals, running, misses, Siblings(shared_metrics))
        await stack.enter_async_context(known.siblings.told(known.told))
        watched = Watched(history, known, watch, config.model_name)
        admin = admin_router(
            state.home.store,
            sharing.keyring,
            engine,
            metrics,
            operator,
            sharing.published,
            bodies,
            sharing.partitions,
            sharing.flushing,
            memories,
            watched,
            metrics_auth=MetricsAuthenticator(
                operator, state.files.secrets.pepper, state.files.metrics_digest
            ),
            open_metrics=config.admin_port is not None,
            finds_engines=config.find_engines,
        )
        admins = [admin]
        if config.page:
            signing_in = SignInParts(PageFiles(), bodies, throttle)
            admins.append(operator_page_router(signing_in, operator, pages.operator))
            keyring, store = sharing.keyring, state.home.store
            tenants.append(usage_page_router(signing_in, keyring, pages.tenant, store, known))
        shown = [health_router(engine, watch.worst), about_router(version("ratoon"))]
        if config.docs:
            shown.append(api_docs_router(PageFiles(API)))
        front = _Front(metrics, Dialects(*dialects), _access_log(config, stack), refusals)
        binds = _binds(config, tenants, admins, shown, front, most)
        yield Gateway(binds, streams)


async def _find_engines(
    config: GatewayConfig,
    engines: EngineSet,
    flushes: FlushReader,
    state: KeptState,
    stack: AsyncExitStack,
) -> None:
    """Let engines join that are registered in the state, if the config says so."""
    if config.find_engines:
        connect = partial(replica_client, config, engines, flushes)
        found = FoundEngines(engines, state.home.store, connect, time.monotonic)
        await stack.enter_async_context(found.kept())


async def _admission(
    config: GatewayConfig,
    state: KeptState,
    sharing: SharedCache,
    engine: Engine,
    misses: LastMisses,
    stack: AsyncExitStack,
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
        misses,
    )
    return admission, (turns, texts)


def _page_sessions(files: StartFiles) -> _PageSessions:
    """A changed operator's key ends the operator's sessions; a tenant's end with its own key."""
    pepper = files.secrets.pepper
    return _PageSessions(
        Sessions("ratoon_admin", "/admin", secret_of(pepper, b"operator", files.admin_digest)),
        Sessions("ratoon_usage", "/usage", secret_of(pepper, b"tenant")),
    )


def _binds(
    config: GatewayConfig,
    tenants: Sequence[APIRouter],
    operator: Sequence[APIRouter],
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
        app = build_app(
            [*routers, *shown],
            front.metrics,
            front.dialects,
            allows,
            front.access_log,
            front.refusals,
        )
        return Bind(app, front.dialects, host, port, connections, refused, allows)

    if config.admin_port is None:
        return (bind([*tenants, *operator], config.host, config.port, most, cors),)
    return (
        bind(tenants, config.host, config.port, most, cors),
        bind(operator, config.admin_host, config.admin_port, OPERATOR, Cors()),
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


def _threads() -> int:
    return max(2, min(4, cores()))
