"""The composition root of a gateway: all its parts, made from one `GatewayConfig`.

All parts are closed in the opposite order of opening. The parts that answer requests are closed
first, then the parts that these use, and the state last.

Elsewhere: what a step makes (`serving_parts.py`), and processes and signals (`main.py`).
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter

from engine.link.interface import Engine
from gateway.admin.routes import admin_router
from gateway.auth.auth import MetricsAuthenticator
from gateway.config import GatewayConfig
from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.dialect import Dialect
from gateway.dialects.gemini.dialect import Gemini
from gateway.dialects.openai.dialect import OpenAI
from gateway.dialects.openrouter.dialect import OpenRouter
from gateway.dialects.responses.dialect import Responses
from gateway.http.about import about_router
from gateway.http.app import GatewayApp, build_app
from gateway.http.cors import Cors, origins_in
from gateway.http.error_dialect import Dialects
from gateway.http.health import health_router
from gateway.http.protocol.server import Bind
from gateway.http.request_head import UNKNOWN_ROUTE
from gateway.limits.open_streams import OpenStreams
from gateway.overview.routes import Watched
from gateway.page.api_docs import api_docs_router
from gateway.page.files import API, PageFiles
from gateway.page.routes import operator_page_router, usage_page_router
from gateway.page.signing_in import SignInParts
from gateway.prompts.model_chats import ModelChats
from gateway.receipts.erasing import Erasing
from gateway.replicas.flushes import FlushReader
from gateway.startup.max_connections import OPERATOR, max_connections, open_files_limit
from gateway.startup.serving_parts import (
    Entry,
    Kept,
    TenantRouteParts,
    open_answers,
    open_entry,
    open_kept,
    open_watched,
)
from gateway.state.faults import FaultWatch
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.refusals import LastRefusals
from gateway.tenant_cache.routes import tenant_cache_router
from gateway.usage.reports import Reports
from gateway.usage.routes import own_usage_router

if TYPE_CHECKING:
    from gateway.receipts.signing import ReceiptKey

# The dialects that the gateway speaks. The first is the default.
DIALECTS: tuple[Dialect, ...] = (*(OpenAI(), Responses(), Anthropic(), Gemini(), OpenRouter()),)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of a gateway that is composed and not yet listening."""

    binds: tuple[Bind, ...]
    streams: OpenStreams


@dataclass(frozen=True, slots=True)
class _Front:
    metrics: GatewayMetrics
    dialects: Dialects
    access_log: AccessLog | None
    refusals: LastRefusals

    def app(self, routers: Sequence[APIRouter], allows: Cors) -> GatewayApp:
        return build_app(
            routers, self.metrics, self.dialects, allows, self.access_log, self.refusals
        )


@asynccontextmanager
async def composed(
    config: GatewayConfig,
    engine: Engine,
    shared_metrics: Path | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
    flushes: FlushReader | None = None,
    chats: ModelChats | None = None,
) -> AsyncIterator[Gateway]:
    """Compose the gateway of `config` with `engine`. Close everything opened at the end.

    `shared_metrics` is the directory of several workers' common counters. Connections to
    engines wait until `flushes` can read the stored flushes. Without `chats`, the model's
    tokenizer and template are read. The data directory must have been set up (`first_start`).
    Raises CannotStart for bad files.
    """
    most = max_connections(config, open_files_limit())
    async with AsyncExitStack() as stack:
        flushes = flushes or FlushReader()
        kept = await open_kept(config, engine, flushes, shared_metrics, stack, chats)
        entry = await open_entry(config, kept, stack)
        answers = await open_answers(config, engine, kept, entry, stack)
        watched = await open_watched(
            config, engine, shared_metrics, kept, entry.running, answers.misses, stack
        )
        signing_in = None
        if config.page:
            signing_in = SignInParts(PageFiles(), entry.throttle)
        routers = _Routers(
            _of_tenants(kept, entry, answers, dialects, watched, signing_in),
            _of_the_operator(config, engine, kept, entry, answers, watched, signing_in),
            _of_all(config, engine, kept.faults),
        )
        access_log, refusals = _access_log(config, stack), watched.known.kept
        front = _Front(kept.metrics, Dialects(*dialects), access_log, refusals)
        yield Gateway(_binds(config, routers, front, most), entry.streams)


@dataclass(frozen=True, slots=True)
class _Routers:
    tenants: Sequence[APIRouter]
    operator: Sequence[APIRouter]
    shown: Sequence[APIRouter]


def _of_tenants(
    kept: Kept,
    entry: Entry,
    answers: TenantRouteParts,
    dialects: Sequence[Dialect],
    watched: Watched,
    signing_in: SignInParts | None,
) -> Sequence[APIRouter]:
    store, keyring, reports = kept.state.home.store, kept.sharing.keyring, Reports()
    routers = [
        *(dialect.router(answers.parts) for dialect in dialects),
        tenant_cache_router(answers.parts),
        own_usage_router(store, entry.tenants, time.time, reports),
    ]
    if signing_in is not None:
        sessions, known = entry.sessions.tenant, watched.known
        routers.append(usage_page_router(signing_in, keyring, sessions, store, known, reports))
    return routers


def _of_the_operator(
    config: GatewayConfig,
    engine: Engine,
    kept: Kept,
    entry: Entry,
    answers: TenantRouteParts,
    watched: Watched,
    signing_in: SignInParts | None,
) -> Sequence[APIRouter]:
    files, operator = kept.state.files, entry.operator
    admin = admin_router(
        kept.state.home.store,
        kept.sharing.keyring,
        engine,
        kept.metrics,
        operator,
        kept.sharing.published,
        entry.bodies,
        kept.sharing.partitions,
        kept.sharing.flushing,
        Erasing(kept.sharing.flushing, partial(_receipt_key, files.secrets.pepper), time.time),
        answers.memories,
        watched,
        answers.parts.adapters,
        metrics_auth=MetricsAuthenticator(operator, files.secrets.pepper, files.metrics_digest),
        open_metrics=config.admin_port is not None,
        finds_engines=config.find_engines,
    )
    if signing_in is None:
        return [admin]
    return [admin, operator_page_router(signing_in, operator, entry.sessions.operator)]


def _receipt_key(pepper: bytes) -> "ReceiptKey":
    """Make the key when it is first used, since its import takes 1.7 MiB (and 8 ms)."""
    from gateway.receipts.signing import ReceiptKey

    return ReceiptKey(pepper)


def _of_all(config: GatewayConfig, engine: Engine, faults: FaultWatch) -> Sequence[APIRouter]:
    shown = [health_router(engine, faults.worst), about_router(version("ratoon"))]
    return [*shown, api_docs_router(PageFiles(API))] if config.docs else shown


def _binds(config: GatewayConfig, routers: _Routers, front: _Front, most: int) -> tuple[Bind, ...]:
    """Bind all routes to one address, or to two if the operator's routes have their own address.

    Each address also serves the routes `routers.shown`. Pages of other origins may read only
    answers on the tenants' address.
    """
    cors = Cors(origins_in(config.cors_origins), front.dialects.exposed)
    tenants = [*routers.tenants]

    def bind(
        some: Sequence[APIRouter], host: str, port: int, connections: int, allows: Cors
    ) -> Bind:
        app = front.app([*some, *routers.shown], allows)
        refused = partial(front.metrics.refused, UNKNOWN_ROUTE)
        return Bind(app, front.dialects, host, port, connections, refused, allows)

    if config.admin_port is None:
        return (bind([*tenants, *routers.operator], config.host, config.port, most, cors),)
    return (
        bind(tenants, config.host, config.port, most, cors),
        bind(routers.operator, config.admin_host, config.admin_port, OPERATOR, Cors()),
    )


def _access_log(config: GatewayConfig, stack: AsyncExitStack) -> AccessLog | None:
    if config.access_log == "off":
        return None
    return stack.enter_context(AccessLog(config.access_log).written())
