"""The parts of a serving gateway, made at the start: state, entry, answers, operator's view.

Each step is one function. The function makes parts from earlier parts, and `stack` closes what it
opens.

Elsewhere: routes and addresses (`composition.py`), and the state on the disk or in Redis
(`kept_state.py`).
"""

import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.link.interface import Engine
from gateway.auth.auth import AdminAuthenticator, Authenticator
from gateway.auth.running_requests import RunningRequests
from gateway.config import GatewayConfig, cores
from gateway.diagnosis.misses import LastMisses
from gateway.diagnosis.seen import SeenPrompts
from gateway.dialects.dialect import ModelCard, RouteParts
from gateway.dialects.stored_records import StoredRecords
from gateway.http.body_memory import BodyMemory
from gateway.limits.open_streams import OpenStreams
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.overview.history import History
from gateway.overview.known import Known, ToldWorker
from gateway.overview.routes import Watched
from gateway.overview.siblings import Siblings
from gateway.page.sessions import Sessions, secret_of
from gateway.processes.fair_executor import FairExecutor
from gateway.prompts.model_chats import ModelChats
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.templates.verdicts import Verdicts
from gateway.prompts.tokens.text_memory import TextMemory
from gateway.prompts.verbatim_turns.turn_memory import TurnMemory
from gateway.prompts.verbatim_turns.verbatim import VerbatimTurns
from gateway.replicas.connecting import replica_client
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.finding import FoundEngines
from gateway.replicas.flushes import FlushReader
from gateway.requests.answering import Answering
from gateway.requests.permits import Permits
from gateway.requests.tracing import Tracing
from gateway.sharing.adapters import TenantAdapters
from gateway.sharing.remembered_turns import cleaned
from gateway.startup.kept_state import KeptState, SharedCache, open_sharing, open_state
from gateway.startup.start_files import StartFiles
from gateway.state.expiry import dropped_when_expired
from gateway.state.faults import FaultWatch
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.refusals import LastRefusals
from gateway.tenant_memory import TenantMemory
from gateway.usage.aggregator import UsageAggregator


@dataclass(frozen=True, slots=True)
class Kept:
    """The state, its sharing, and the counts of requests and usage."""

    state: KeptState
    sharing: SharedCache
    aggregator: UsageAggregator
    metrics: GatewayMetrics
    faults: FaultWatch


@dataclass(frozen=True, slots=True)
class PageSessions:
    """The sessions of the operator's and the tenants' page."""

    operator: Sessions
    tenant: Sessions


@dataclass(frozen=True, slots=True)
class Entry:
    """The guards of requests, and the limits on connections and on the bodies in memory."""

    sessions: PageSessions
    operator: AdminAuthenticator
    tenants: Authenticator
    running: RunningRequests
    bodies: BodyMemory
    streams: OpenStreams
    throttle: RefusalThrottle


@dataclass(frozen=True, slots=True)
class TenantRouteParts:
    """The parts that the dialects' routes use, the latest misses, and the tenants' memories."""

    parts: RouteParts
    misses: LastMisses
    memories: Sequence[TenantMemory[Any]]


async def open_kept(
    config: GatewayConfig,
    engine: Engine,
    flushes: FlushReader,
    shared_metrics: Path | None,
    stack: AsyncExitStack,
    chats: ModelChats | None = None,
) -> Kept:
    """Open the first step, the state and the counts; raise CannotStart for bad files.

    Without `chats`, reads the tokenizer and template.
    """
    metrics = GatewayMetrics(
        shared_metrics, config.model_name if config.vllm_metric_names else None
    )
    state = await open_state(config, stack, metrics.charge_lost, chats)
    flushes.found(state.home.store)
    sharing = await open_sharing(config, state, engine, flushes, stack)
    aggregator = UsageAggregator(state.home.store, time.time)
    await stack.enter_async_context(aggregator.stored_regularly())
    stack.callback(state.room.end)
    await stack.enter_async_context(dropped_when_expired(state.home.store, time.time))
    if isinstance(engine, EngineSet):
        engine.count_with(metrics.routing)
        await _find_engines(config, engine, flushes, state, stack)
    faults = FaultWatch([state.home.watched, *state.limits.watched, state.room], metrics.faults)
    await stack.enter_async_context(faults.kept())
    return Kept(state, sharing, aggregator, metrics, faults)


async def _find_engines(
    config: GatewayConfig,
    engines: EngineSet,
    flushes: FlushReader,
    state: KeptState,
    stack: AsyncExitStack,
) -> None:
    if config.find_engines:
        connect = partial(replica_client, config, engines, flushes)
        found = FoundEngines(engines, state.home.store, connect, time.monotonic)
        await stack.enter_async_context(found.kept())


async def open_entry(config: GatewayConfig, kept: Kept, stack: AsyncExitStack) -> Entry:
    """Open the second step: keys, sessions, and limits on bodies and connections."""
    keyring, files = kept.sharing.keyring, kept.state.files
    sessions = _page_sessions(files)
    operator = AdminAuthenticator(files.secrets.pepper, files.admin_digest, sessions.operator)
    running = RunningRequests(keyring)
    await stack.enter_async_context(running.checked())
    return Entry(
        sessions,
        operator,
        Authenticator(keyring, operator, running),
        running,
        BodyMemory(config.bounds),
        OpenStreams(config.bounds.max_streams_per_tenant),
        RefusalThrottle(time.monotonic),
    )


def _page_sessions(files: StartFiles) -> PageSessions:
    """Make the pages' sessions. Changing a key ends the sessions begun with the old key."""
    pepper = files.secrets.pepper
    return PageSessions(
        Sessions("ratoon_admin", "/admin", secret_of(pepper, b"operator", files.admin_digest)),
        Sessions("ratoon_usage", "/usage", secret_of(pepper, b"tenant")),
    )


async def open_answers(
    config: GatewayConfig, engine: Engine, kept: Kept, entry: Entry, stack: AsyncExitStack
) -> TenantRouteParts:
    """Open the third step: the parts from a request to its answer."""
    state, misses = kept.state, LastMisses(time.time)
    admission, memories = await _admission(config, kept, engine, misses, stack)
    tracing = _tracing(config, stack)
    permits = Permits(
        state.limits.limiter, config.prices, entry.streams, entry.bodies, entry.throttle
    )
    await stack.enter_async_context(permits.kept())
    parts = RouteParts(
        Answering(engine, admission, kept.metrics, kept.aggregator, tracing, misses),
        ModelCard(
            config.model_name,
            engine,
            int(time.time()),
            state.files.defaults,
            state.files.tokenizer_info,
        ),
        config.bounds,
        entry.tenants,
        permits,
        StoredRecords(state.home.store, config.bounds, time.time),
        TenantAdapters(
            state.home.store,
            engine,
            kept.sharing.namespaces,
            kept.sharing.keyring.forget,
            config.model_name,
            time.time,
        ),
    )
    return TenantRouteParts(parts, misses, memories)


async def _admission(
    config: GatewayConfig, kept: Kept, engine: Engine, misses: LastMisses, stack: AsyncExitStack
) -> tuple[Admission, Sequence[TenantMemory[Any]]]:
    files, store = kept.state.files, kept.state.home.store
    turns = TurnMemory(config.bounds, time.monotonic)
    seen = SeenPrompts(config.bounds, time.monotonic)
    texts, verdicts = TextMemory(config.bounds, time.monotonic), Verdicts(time.monotonic)
    memories: tuple[TenantMemory[Any], ...] = (turns, seen, texts, verdicts)
    for memory in memories:
        await stack.enter_async_context(cleaned(memory, store))
    admission = Admission(
        files.tokenizer,
        files.template,
        kept.sharing.namespaces,
        lambda: engine.welcome,
        stack.enter_context(closing(FairExecutor(_threads()))),
        config.bounds,
        files.forms,
        VerbatimTurns(
            turns,
            files.forms,
            files.tokenizer,
            takes_text=files.template is None or files.template.takes_text_beside_calls,
        ),
        seen,
        texts,
        misses,
        verdicts,
        store,
    )
    return admission, (turns, texts, verdicts)


def _threads() -> int:
    return max(2, min(4, cores()))


def _tracing(config: GatewayConfig, stack: AsyncExitStack) -> Tracing | None:
    if config.otlp_endpoint is None:
        return None
    from gateway.telemetry.span_export import collector, exporting

    tracer = stack.enter_context(exporting(collector(config.otlp_endpoint)))
    return Tracing(tracer, config.model_name)


async def open_watched(
    config: GatewayConfig,
    engine: Engine,
    shared_metrics: Path | None,
    kept: Kept,
    running: RunningRequests,
    misses: LastMisses,
    stack: AsyncExitStack,
) -> Watched:
    """Open the last step: the operator's view of this worker and of the other workers."""
    history = History(engine, kept.metrics, time.time)
    await stack.enter_async_context(history.kept())
    worker, siblings = ToldWorker(os.getpid(), time.time()), Siblings(shared_metrics)
    known = Known(worker, LastRefusals(), running, misses, siblings)
    await stack.enter_async_context(siblings.told(known.told))
    return Watched(history, known, kept.faults, config.model_name)
