"""Health checks for load balancers and supervisors, without a key."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
from fastapi import APIRouter, Response

from engine.link.interface import Engine, ReplicaState
from engine.link.messages import Role
from gateway.http.openapi import described
from gateway.state.faults import Fault

NO_ENGINE = "no engine is connected"

RouterState: TypeAlias = Literal["answers", "no answer"]
_ROUTER: dict[bool | None, RouterState] = {True: "answers", False: "no answer"}


class ReplicaReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one of several engines ("ready", "stalled", "draining", "absent", "refused").

    "handshake_failed" means another link key, or a port without an engine. `engine_id` is new for
    each process. `role` is given unless it is "both".
    """

    state: ReplicaState
    reason: str = ""
    engine_id: str | None = None
    role: Role = "both"


class HealthReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of both health checks. `reason` explains a bad status.

    `/readyz` answers "ready", "not_ready" without an engine, "stalled" while the engine's process
    makes no progress, or the worst fault of the stored state (`gateway.state.faults`). With
    "state_evicts" and "disk_full", requests are still served. `replicas` lists several engines, of
    which one ready engine is enough. `router` tells whether the process that chooses an engine
    answers this worker; "no answer" does no harm.
    """

    status: str
    reason: str | None = None
    replicas: dict[str, ReplicaReply] = {}
    router: RouterState | None = None


def health_router(engine: Engine, worst: Callable[[], Fault | None]) -> APIRouter:
    """Serve `/healthz` (200 if the process answers), `/readyz` (200 with an engine and no fault).

    The faults are the faults of the gateway's stored state (`gateway.state.faults`). Other servers'
    names are served too: `/livez` is `/healthz`, and `/health`, as in vLLM, is `/readyz`.
    """
    router = APIRouter()

    @router.get("/healthz", openapi_extra=described(HealthReply))
    @router.get("/livez", openapi_extra=described(HealthReply))
    async def healthz() -> Response:
        return _told(HealthReply("ok"), 200)

    @router.get("/health", openapi_extra=described(HealthReply, statuses=(200, 503)))
    @router.get("/readyz", openapi_extra=described(HealthReply, statuses=(200, 503)))
    async def readyz() -> Response:
        health = _readiness(engine, worst())
        return _told(health, 200 if health.status == "ready" else 503)

    return router


def _readiness(engine: Engine, fault: Fault | None) -> HealthReply:
    replicas = {
        name: ReplicaReply(one.state, one.why, one.engine_id, one.role)
        for name, one in engine.replicas.items()
    }
    router = _ROUTER.get(engine.router_answers)
    if engine.welcome is None:
        why = engine.handshake_error or NO_ENGINE
        return HealthReply("not_ready", why, replicas, router)
    if engine.is_stalled:
        return HealthReply("stalled", "the engine does not answer", replicas, router)
    if fault is not None:
        return HealthReply(fault.status, fault.reason, replicas, router)
    return HealthReply("ready", replicas=replicas, router=router)


def _told(health: HealthReply, status: int) -> Response:
    return Response(msgspec.json.encode(health), status_code=status, media_type="application/json")
