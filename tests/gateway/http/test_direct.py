"""Direct routes bypass FastAPI, but answer, refuse and are described like all other routes.

Positive control of each test: the same handler as one of FastAPI's routes.
"""

# No `from __future__ import annotations`: FastAPI evaluates the handlers' annotations, which name
# local functions.

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import pytest
from fastapi import APIRouter, Depends
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import QueueFull
from gateway.errors import BadRequest, Unauthenticated
from gateway.http.app import build_app
from gateway.http.direct import Guard, direct
from gateway.http.request_head import route_of
from gateway.telemetry.metrics import GatewayMetrics
from tests.gateway.http.protocol.exchange import DIALECTS

Said = list[str]
Fault = BadRequest | QueueFull | RuntimeError


class Noting(Response):
    """A response that records when it has been sent."""

    def __init__(self, said: Said) -> None:
        super().__init__(b"answer")
        self._said = said

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        await super().__call__(scope, receive, send)
        self._said.append("sent")


def routed(said: Said, fault: Fault | None = None) -> TestClient:
    """Make an application with one handler at two paths; it records calls, or raises `fault`."""

    async def caller(request: Request) -> str:
        if "x-caller" not in request.headers:
            raise Unauthenticated("who is it?")
        return request.headers["x-caller"]

    async def permitted(name: Annotated[str, Depends(caller)]) -> AsyncIterator[str]:
        said.append(f"permit of {name}")
        try:
            yield name.upper()
        finally:
            said.append("given back")

    async def work(request: Request, permit: Annotated[str, Depends(permitted)]) -> Response:
        is_direct = "router" not in request.scope
        said.append(f"{permit} at {route_of(request.scope)}, {'' if is_direct else 'not '}direct")
        if fault is not None:
            raise fault
        return Noting(said)

    router = APIRouter(prefix="/of")
    direct(
        router, "/direct", Guard(caller, asynccontextmanager(permitted)), {"summary": "directly"}
    )(work)
    router.post("/framework", openapi_extra={"summary": "directly"})(work)
    app = build_app([router], GatewayMetrics(), DIALECTS)
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(params=["/of/direct", "/of/framework"])
def path(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_the_permit_is_given_back_once_the_answer_is_sent(path: str) -> None:
    said: Said = []
    answer = routed(said).post(path, headers={"x-caller": "ada"})
    assert (answer.status_code, answer.content) == (200, b"answer")
    how = "direct" if path == "/of/direct" else "not direct"
    assert said == ["permit of ada", f"ADA at {path}, {how}", "sent", "given back"]
    assert answer.headers["x-request-id"]


def test_who_is_nobody_gets_no_permit(path: str) -> None:
    said: Said = []
    answer = routed(said).post(path)
    assert (answer.status_code, said) == (401, [])
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (BadRequest("no", code="wrong"), 400, "wrong"),
        (QueueFull("full", retry_after_s=3.0), 429, "rate_limit_exceeded"),
        (RuntimeError("canary"), 500, "internal_error"),
    ],
)
def test_faults_are_answered_alike(path: str, fault: Fault, status: int, code: str) -> None:
    said: Said = []
    answer = routed(said, fault).post(path, headers={"x-caller": "ada"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "canary" not in answer.text
    assert said[-1] == "given back"


def test_other_methods_and_paths_are_the_frameworks(path: str) -> None:
    client = routed([])
    refused = client.get(path, headers={"x-caller": "ada"})
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert client.post(f"{path}/more").status_code == 404
    assert client.post(f"{path}/", headers={"x-caller": "ada"}).status_code == 200


def test_it_is_described_like_all_others() -> None:
    described = routed([]).get("/openapi.json").json()["paths"]
    one, other = (described[path]["post"] for path in ("/of/direct", "/of/framework"))
    assert one.pop("operationId") != other.pop("operationId")
    assert one == other
    assert one["summary"] == "directly"
