from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import BaseRoute, Route

from gateway.http.app import GatewayApp, build_app
from gateway.startup.composition import composed
from gateway.startup.first_start import ensure_first_start
from gateway.telemetry.logs import QuietFormatter
from gateway.telemetry.metrics import GatewayMetrics
from tests.doubles.engine.fake_engine import FakeEngine, hanging_at
from tests.doubles.gateway.served import MODEL, Served, config_of
from tests.gateway.http.protocol.exchange import DIALECTS

PUBLIC = {
    ("GET", path)
    for path in ("/", "/version", "/healthz", "/readyz", "/health", "/livez", "/openapi.json")
}
CANARY = "canary-8c1d"


@pytest.fixture
def http(served: Served, engine: FakeEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url) as client:
        yield client


def every_route(http: httpx.Client) -> set[tuple[str, str]]:
    paths = http.get("/openapi.json").json()["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


def routes_within(router: object) -> Iterator[BaseRoute]:
    """Return all routes, including those of nested routers."""
    for route in getattr(router, "routes", ()):
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from routes_within(inner)


# Called only by the pages' scripts, with a cookie: tests/gateway/page.
NOT_DESCRIBED = ("/openapi.json", "/v1/responses/compact")  # the second path is refused by name
# Routes used only by `ratoon prefixes export` and `import`.
CARRIED = (
    *(f"/admin/prefixes/{{prefix_id}}/{one}" for one in ("export", "units", "signature")),
    "/admin/imports",
)
# the same routes are described below /v1beta
SAME_AS_BETA = ("/v1/cachedContents", "/v1/models/{model:path}:")
OF_THE_PAGES = ("/admin/ui", "/admin/session", "/usage", "/docs")


async def test_no_route_is_left_out_of_the_description(tiny_model: Path, tmp_path: Path) -> None:
    await ensure_first_start(tmp_path, clock=time.time)
    config = config_of(tiny_model, tmp_path)
    async with composed(config, FakeEngine()) as gateway:
        (bind,) = gateway.binds
        assert isinstance(bind.app, GatewayApp)
        described = bind.app.openapi()["paths"]
        for route in routes_within(bind.app):
            assert isinstance(route, Route)
            is_described = isinstance(route, APIRoute) and route.include_in_schema
            is_of_a_page = route.path.startswith((*OF_THE_PAGES, *SAME_AS_BETA, *CARRIED))
            assert is_described != is_of_a_page or route.path in NOT_DESCRIBED, route.path
        assert len(described) >= 10


def test_every_route_but_a_few_asks_for_a_key(http: httpx.Client, served: Served) -> None:
    routes = every_route(http) | {("GET", "/openapi.json")}
    assert {("POST", "/v1/chat/completions"), ("POST", "/tokenize"), *PUBLIC} <= routes
    assert ("POST", "/admin/cache/flush") in routes
    for method, path in routes:
        answer = http.request(method, path.replace("{name}", MODEL))
        expected = 200 if (method, path) in PUBLIC else 401
        assert answer.status_code == expected, (method, path)


def test_the_description_says_which_key_a_route_takes(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    schemes = described["components"]["securitySchemes"]
    assert {name: one["scheme"] for name, one in schemes.items()} == {
        "tenant": "bearer",
        "operator": "bearer",
    }
    for path, methods in described["paths"].items():
        is_operators = path.startswith("/admin") or path == "/metrics"
        for method, said in methods.items():
            taker = "operator" if is_operators else "tenant"
            is_public = (method.upper(), path) in PUBLIC
            assert said.get("security", []) == ([] if is_public else [{taker: []}]), path
            assert said["tags"] == (["everyone"] if is_public else [taker]), path


def test_a_tenant_is_no_operator_and_the_other_way_round(
    http: httpx.Client, served: Served
) -> None:
    tenant = {"authorization": f"Bearer {served.key}"}
    operator = {"authorization": f"Bearer {served.admin_key}"}
    assert http.get("/metrics", headers=tenant).status_code == 401
    assert http.get("/metrics", headers=operator).status_code == 200
    assert http.get("/v1/models", headers=operator).status_code == 401
    assert http.get("/v1/models", headers=tenant).status_code == 200


def test_the_key_for_metrics_opens_nothing_else(http: httpx.Client, served: Served) -> None:
    bearer = {"authorization": f"Bearer {served.metrics_key}"}
    assert http.get("/metrics", headers=bearer).status_code == 200
    for method, path in every_route(http) - {("GET", "/metrics")} - PUBLIC:
        answer = http.request(method, path.replace("{name}", MODEL), headers=bearer)
        assert answer.status_code == 401, (method, path)
    wrong = {"authorization": f"Bearer {served.metrics_key[:-1]}"}
    assert http.get("/metrics", headers=wrong).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/chat/completions//", 404, "unknown_url"),
        ("GET", "/redoc", 404, "unknown_url"),
        ("POST", "/v1/moderations", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/tokenize", 405, "method_not_allowed"),
        ("GET", "/%ff%00..%2f", 404, "unknown_url"),
    ],
)
def test_what_is_not_there(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/files", "/openapi.json lists all routes"),
        ("/v1beta/files", "/openapi.json lists all routes"),
        ("/v1/messages/batches", "/openapi.json lists all routes"),
        ("/chat/completions", "the client's base URL lacks /v1"),
        ("/v1/v1/messages", "the client's base URL has /v1 twice"),
        ("/v1/v1beta/models", "the client's base URL has /v1 twice"),
    ],
)
def test_an_unknown_route_says_what_to_look_at(http: httpx.Client, path: str, words: str) -> None:
    assert http.get(path).json()["error"]["message"].endswith(words)


def test_a_parameter_of_the_wrong_type_is_named(http: httpx.Client, served: Served) -> None:
    operator = {"authorization": f"Bearer {served.admin_key}"}
    answers = [
        http.get("/admin/audit", params={"limit": limit}, headers=operator) for limit in ("x", "1")
    ]
    assert [answer.status_code for answer in answers] == [400, 200]
    assert answers[0].json()["error"]["param"] == "limit"


def test_every_answer_has_a_name_and_a_time(http: httpx.Client, served: Served) -> None:
    answers = [http.get(path) for path in ("/healthz", "/nowhere", "/v1/models")]
    names = {answer.headers["x-request-id"] for answer in answers}
    assert len(names) == 3
    assert all(int(answer.headers["openai-processing-ms"]) >= 0 for answer in answers)
    assert all("server" not in answer.headers for answer in answers)


def test_the_description_refers_only_to_what_is_there(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    for name in str(described).split("#/components/schemas/")[1:]:
        assert name.split("'")[0] in schemas
    chat = described["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["required"]
    assert schemas["ChatRequest"]["required"] == ["model", "messages"]


def test_tokenize_and_back(http: httpx.Client, served: Served) -> None:
    headers = {"authorization": f"Bearer {served.key}"}
    text = http.post(
        "/tokenize", headers=headers, json={"prompt": "hé", "return_token_strs": True}
    ).json()
    assert text == {
        "count": 4,
        "max_model_len": 4096,
        "tokens": [256, 104, 0xC3, 0xA9],
        "token_strs": ["<|bos|>", "h", "\ufffd", "\ufffd"],
    }
    bare = http.post(
        "/tokenize", headers=headers, json={"prompt": "hé", "add_special_tokens": False}
    ).json()
    assert bare["tokens"] == [104, 0xC3, 0xA9]
    chat = http.post(
        "/tokenize",
        headers=headers,
        json={"messages": [{"role": "user", "content": "x" * 5000}], "model": MODEL},
    ).json()
    assert chat["count"] == 1 + 1 + len("user:") + 5000 + 1 + len("assistant:")
    back = http.post("/detokenize", headers=headers, json={"tokens": text["tokens"]}).json()
    assert back == {"prompt": "<|bos|>hé"}


def test_clients_are_told_of_the_tokenizer(http: httpx.Client, served: Served) -> None:
    headers = {"authorization": f"Bearer {served.key}"}
    told = http.get("/tokenizer_info", headers=headers).json()
    assert told["eos_token"] == "<|eos|>"
    assert told["tokenizer_class"]
    assert "messages" in told["chat_template"]
    assert http.get("/tokenizer_info").status_code == 401


def test_metrics_count_what_became_of_requests(
    client: openai.OpenAI, http: httpx.Client, served: Served, engine: FakeEngine
) -> None:
    def sample(name: str) -> float:
        text = http.get("/metrics", headers={"authorization": f"Bearer {served.admin_key}"}).text
        found = [line.split(" ")[1] for line in text.splitlines() if line.startswith(name + " ")]
        return float(found[0]) if found else 0.0

    def outcome(of: str) -> str:
        return f'ratoon_requests_total{{outcome="{of}",route="/v1/completions"}}'

    names = [
        outcome("length"),
        outcome("stop"),
        outcome("cancelled"),
        'ratoon_requests_refused_total{code="invalid_value",route="/v1/completions"}',
        "ratoon_prompt_tokens_total",
        "ratoon_generated_tokens_total",
        "ratoon_time_to_first_token_seconds_count",
        "ratoon_inter_token_latency_seconds_count",
        "ratoon_queue_seconds_count",
        "ratoon_requests_running",
    ]
    before = [sample(name) for name in names]
    client.completions.create(model=MODEL, prompt=[1, 2, 3, 4], max_tokens=3)
    client.completions.create(model=MODEL, prompt=[1, 2], n=2)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt="x", temperature=9)
    engine.pace = hanging_at(1)
    client.completions.create(model=MODEL, prompt=[1, 2], stream=True).close()
    assert engine.wait_until(lambda engine: engine.running == 0)
    assert served.wait_idle()
    after = [sample(name) for name in names]
    changes = [new - old for old, new in zip(before, after, strict=True)]
    assert changes == [1, 1, 1, 1, 4 + 2 + 2, 3 + 2 * 3 + 1, 3, 2 + 2, 1 + 2 + 1, 0]


def broken_app() -> TestClient:
    router = APIRouter()

    @router.get("/broken")
    async def broken() -> None:
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise RuntimeError(f"prompt: {CANARY}") from error

    app = build_app([router], GatewayMetrics(), DIALECTS)
    return TestClient(app, raise_server_exceptions=False)


def test_an_unexpected_exception_leaks_nothing() -> None:
    with broken_app() as client:
        answer = client.get("/broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.json()["error"]["type"] == "server_error"
    assert CANARY not in answer.text
    assert "RuntimeError" not in answer.text
    assert answer.headers["x-request-id"]


def test_logs_hold_places_and_no_messages() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(QuietFormatter("%(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise RuntimeError(f"prompt: {CANARY}") from error
    except RuntimeError:
        logger.exception("it broke")
    text = written.getvalue()
    assert CANARY not in text
    assert "it broke" in text
    assert text.index("KeyError") < text.index("led to:") < text.index("RuntimeError")
    assert "test_app.py" in text


async def test_many_at_once_are_kept_apart(served: Served, engine: FakeEngine) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key=served.key, max_retries=0
    ) as client:

        async def parrot(word: str) -> str:
            told = ""
            stream = await client.completions.create(
                model=MODEL, prompt=[*word.encode()], stream=True
            )
            async for chunk in stream:
                told += chunk.choices[0].text
            return told

        words = [f"word {i} é😀" for i in range(40)]
        assert await asyncio.gather(*map(parrot, words)) == words
