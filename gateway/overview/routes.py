"""`/admin/overview`, `/admin/requests` and `/admin/refusals`, which the operator's page polls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Response

from engine.errors import EngineError
from engine.link.interface import Engine
from engine.link.view_messages import Overview, OverviewQuery, Sequences, SequencesQuery
from gateway.errors import Unavailable
from gateway.http.admin_json import json_response
from gateway.http.openapi import described
from gateway.overview.health import health
from gateway.overview.history import INTERVAL_S, History
from gateway.overview.known import Known
from gateway.overview.requests import SEQUENCES, RequestList, requests_under_way
from gateway.overview.tenant_names import TenantNames
from gateway.overview.views import OverviewShown, eviction_shown, ids_in, queue_shown, tier_shown
from gateway.state.faults import FaultWatch
from gateway.state.records import IsolationReport
from gateway.state.store import IsolationReports
from gateway.telemetry.refusals import Refusal

OWNERS = 50
EVICTIONS = 100


@dataclass(frozen=True, slots=True)
class Watched:
    """The sources of this process's data about itself and other workers, for the operator."""

    history: History
    known: Known
    faults: FaultWatch
    model: str


class RefusalShown(Refusal, frozen=True, kw_only=True):
    """A refusal with its tenant's name."""

    name: str | None


class RefusalList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /admin/refusals: all workers' refusals, newest first, and counts by code."""

    refusals: list[RefusalShown]
    by_code: dict[str, int]


def overview_router(
    watched: Watched,
    engine: Engine,
    names: TenantNames,
    reports: IsolationReports,
    clock: Callable[[], float],
) -> APIRouter:
    """Serve this module's three routes. `admin_router` guards the routes."""
    router = APIRouter()

    @router.get("/admin/overview", openapi_extra=described(OverviewShown))
    async def overview(since: float = 0.0) -> Response:
        shown = await _overview(watched, engine, names, clock(), since)
        return json_response(msgspec.structs.replace(shown, isolation=await _report(reports)))

    @router.get("/admin/requests", openapi_extra=described(RequestList))
    async def requests() -> Response:
        try:
            sequences = await engine.ask(SequencesQuery(limit=SEQUENCES))
        except EngineError:
            sequences = Sequences(query_id="", total=0, sequences=[])
        own = await watched.known.requests()
        ids = {one.flow for one in sequences.sequences} | {one.tenant_id or "" for one in own}
        return json_response(
            requests_under_way(sequences, own, await names.known(ids), watched.model)
        )

    @router.get("/admin/refusals", openapi_extra=described(RefusalList))
    async def refusals() -> Response:
        told = await watched.known.refusals()
        known = await names.known({one.tenant for one in told.last if one.tenant is not None})
        shown = [
            RefusalShown(**msgspec.structs.asdict(one), name=known.get(one.tenant or ""))
            for one in told.last
        ]
        return json_response(RefusalList(refusals=shown, by_code=told.by_code))

    return router


async def _overview(
    watched: Watched, engine: Engine, names: TenantNames, now: float, since: float
) -> OverviewShown:
    found, (workers, silent) = await asyncio.gather(
        _overview_if_any(engine), watched.known.workers()
    )
    known = await names.known(ids_in(found)) if found else {}
    return OverviewShown(
        now=now,
        interval_s=INTERVAL_S,
        samples=watched.history.since(since),
        tiers=[tier_shown(one, known) for one in found.tiers] if found else [],
        queue=[queue_shown(one, known) for one in found.queue] if found else [],
        evictions=[eviction_shown(one, known, now) for one in found.evictions] if found else [],
        states=found.states if found else None,
        health=health(
            found,
            watched.faults.faults(),
            is_stalled=engine.is_stalled,
            workers=workers,
            silent=silent,
            now=now,
            replicas=engine.replicas,
            why_absent=engine.handshake_error,
            router_answers=engine.router_answers,
        ),
        isolation=None,
    )


async def _report(reports: IsolationReports) -> IsolationReport | None:
    try:
        return await reports.isolation_report()
    except Unavailable:
        return None


async def _overview_if_any(engine: Engine) -> Overview | None:
    try:
        return await engine.ask(OverviewQuery(owners=OWNERS, evictions=EVICTIONS))
    except EngineError:
        return None
