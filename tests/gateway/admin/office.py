"""The admin routes with a real SQLite store, keyring and metrics, and a fake engine."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Depends, FastAPI

from gateway.admin.routes import admin_router
from gateway.auth.auth import AdminAuthenticator, Authenticator
from gateway.auth.keyring import Keyring, key_digest
from gateway.auth.running_requests import RunningRequests
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.diagnosis.misses import LastMisses
from gateway.http.body_memory import BodyMemory
from gateway.overview.history import History
from gateway.overview.known import Known, ToldWorker
from gateway.overview.routes import Watched
from gateway.overview.siblings import Siblings
from gateway.prompts.prefix_tokens import PrefixTokens
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.prompts.verbatim_turns.turn_memory import TurnMemory
from gateway.receipts.erasing import Erasing
from gateway.receipts.signing import ReceiptKey
from gateway.replicas.flushes import FlushReader
from gateway.sharing.adapters import TenantAdapters
from gateway.sharing.flushing import Flushing
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.sharing.partitions import Partitions
from gateway.sharing.published import Published, PublishedParts
from gateway.state.faults import FaultWatch
from gateway.state.sqlite.store import SqliteStore
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.refusals import LastRefusals
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.operated_engine import OperatedEngine
from tests.gateway.support.small_app import client_of, small_app

PEPPER = b"pepper".ljust(32, b".")


@dataclass
class Office:
    """The operator's client, and the parts behind the admin routes. `/me` answers tenants."""

    app: FastAPI
    operator: httpx.AsyncClient
    admin_key: str
    store: SqliteStore
    keyring: Keyring
    engine: OperatedEngine
    metrics: GatewayMetrics
    clock: ManualClock
    turns: TurnMemory
    watched: Watched

    async def tenant(self, name: str = "acme", **fields: Any) -> dict[str, Any]:
        answer = await self.operator.post("/admin/tenants", json={"name": name, **fields})
        assert answer.status_code == 201
        return body(answer)

    async def key(self, tenant_id: str, **fields: Any) -> dict[str, Any]:
        answer = await self.operator.post(f"/admin/tenants/{tenant_id}/keys", json=fields)
        assert answer.status_code == 201
        return body(answer)

    async def me(self, key: str) -> httpx.Response:
        """Return the answer to a tenant's request with `key`."""
        async with client_of(self.app, key) as http:
            return await http.get("/me")


@asynccontextmanager
async def open_office(data_dir: Path, *, open_metrics: bool = False) -> AsyncIterator[Office]:
    clock = ManualClock()
    store = SqliteStore(data_dir / "state.sqlite")
    keyring = Keyring(store, PEPPER, clock, monotonic=ManualClock())
    engine, metrics = OperatedEngine(), GatewayMetrics()
    admin_key = "sk-admin-" + secrets.token_urlsafe(32)
    guard = AdminAuthenticator(PEPPER, key_digest(PEPPER, admin_key))
    pool = ThreadPoolExecutor(1)
    index = PublishedIndex()
    tokens, namespaces = tiny_tokens(), Namespaces(PEPPER, published=index)
    published = Published(
        PublishedParts(store, tokens.of, tokens.text, namespaces, index, engine, pool)
    )
    turns = TurnMemory(Bounds(), clock)
    known = Known(
        ToldWorker(1, clock()),
        LastRefusals(),
        RunningRequests(keyring),
        LastMisses(clock),
        Siblings(),
    )
    history, faults = History(engine, metrics, clock), FaultWatch([], lambda _: None)
    watched = Watched(history, known, faults, "tiny")
    flushing = Flushing(store, engine, clock, FlushReader(clock))
    app = small_app(
        admin_router(
            store,
            keyring,
            engine,
            metrics,
            guard,
            published,
            BodyMemory(Bounds()),
            Partitions(store, engine, are_wanted=True),
            flushing,
            Erasing(flushing, lambda: ReceiptKey(PEPPER), clock),
            [turns],
            watched,
            TenantAdapters(store, engine, namespaces, keyring.forget, "tiny", clock),
            open_metrics=open_metrics,
            finds_engines=True,
            clock=clock,
        ),
        _tenant_router(Authenticator(keyring)),
    )
    async with client_of(app, admin_key) as operator:
        yield Office(
            app, operator, admin_key, store, keyring, engine, metrics, clock, turns, watched
        )
    pool.shutdown()
    await store.close()


@cache  # making these parts takes half the time of making an office
def tiny_tokens() -> PrefixTokens:
    with TemporaryDirectory() as directory:
        model = write_tiny_model(Path(directory) / "tiny")
        tokenizer = Tokenizer.load(model)
        return PrefixTokens(tokenizer, ChatTemplate.load(model, tokenizer.control))


def _tenant_router(authenticator: Authenticator) -> APIRouter:
    router = APIRouter()

    async def me(caller: Caller) -> dict[str, Any]:
        return {"id": caller.tenant_id, "weight": caller.weight}

    me.__annotations__["caller"] = Annotated[Caller, Depends(authenticator)]
    router.add_api_route("/me", me)
    return router


def body(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer."""
    value = answer.json()
    assert isinstance(value, dict)
    return value


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    """Return the status, code and param of an error response."""
    error = body(answer)["error"]
    return answer.status_code, error["code"], error["param"]
