"""The cost of authentication and limits per request: in SQLite, or in Redis on loopback.

    python -m benchmarks.gateway.limits

A tenant with every kind of limit sends one request after another. For each request, the key is
checked, and its limits are reserved and settled. `bare` is a tenant without limits, for which only
the key is checked.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import uvloop

from benchmarks.record import emit, p50_and_p99
from engine.link.messages import Generate, SamplingParams
from gateway.auth.keyring import Keyring
from gateway.config import Bounds
from gateway.http.body_memory import BodyMemory
from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import Limiter
from gateway.limits.open_streams import OpenStreams
from gateway.limits.redis import RedisLimiter
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.limits.sqlite import SqliteLimiter
from gateway.prompts.generation_request import AdmittedRequest, TextRules
from gateway.requests.permits import Permits
from gateway.state.records import Tenant
from gateway.state.redis.link import RedisLink, connect
from gateway.state.sqlite.store import SqliteStore
from gateway.tenant_limits import MAX_RATE, Budget, Limits, Prices, TokenCounts
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.gateway.redis_server import redis_server

EVERYTHING = Limits(
    requests_per_minute=MAX_RATE,
    tokens_per_minute=MAX_RATE,
    max_concurrent=1000,
    budget=Budget(units=1e9),
)
PROMPT_TOKENS = 500
PEPPER = b"p" * 32


def admitted() -> AdmittedRequest:
    """Create the admitted form of a request for one answer to one prompt."""
    prompt = np.zeros(PROMPT_TOKENS, "<i4").tobytes()
    path = NamespacePath.single(Namespace(b"n" * 16))
    generate = Generate(
        request_id="r",
        token_ids=prompt,
        namespaces=path.spans,
        block_keys=b"",
        flow="tn",
        sampling=SamplingParams(max_tokens=100),
    )
    return AdmittedRequest((generate,), 1, PROMPT_TOKENS, TextRules())


async def measure(permits: Permits, keyring: Keyring, key: str, requests: int) -> list[float]:
    """Measure the seconds of each of `requests` admissions."""
    request, used = admitted(), TokenCounts(computed=PROMPT_TOKENS, generated=100)
    taken = []
    for _ in range(requests):
        began = time.perf_counter()
        caller = await keyring.identify(key)
        async with permits.taken(caller) as permit:
            await permit.extend(request)
            permit.settles(lambda: used)
        taken.append(time.perf_counter() - began)
    return taken


async def told(name: str, limiter: Limiter, limits: Limits, directory: Path, requests: int) -> None:
    """Measure a limiter for a tenant with `limits`, and print its JSON line."""
    store = SqliteStore(directory / f"{name}.sqlite")
    await store.create(Tenant(id="tn", name="tn", created_at=0.0, limits=limits))
    keyring = Keyring(store, PEPPER)
    key = (await keyring.issue("tn")).secret
    bodies, throttle = BodyMemory(Bounds()), RefusalThrottle(time.monotonic)
    permits = Permits(limiter, Prices(), OpenStreams(1), bodies, throttle)
    async with permits.kept():
        await measure(permits, keyring, key, 200)
        taken = await measure(permits, keyring, key, requests)
    await store.close()
    emit(name, **p50_and_p99(taken))


async def measure_all(directory: Path, requests: int) -> None:
    """Measure every limiter, one after another."""
    bare, embedded = (SqliteLimiter(directory / name) for name in ("no.limits", "limits"))
    await told("bare", bare, Limits(), directory, requests)
    await told("embedded", embedded, EVERYTHING, directory, requests)
    with redis_server(directory) as server:
        link = RedisLink(connect(server.url), timeout_s=10)
        shared = GuardedLimiter(RedisLimiter(link), replicas=1)
        await told("Redis", shared, EVERYTHING, directory, requests)
        await link.close()


def main(
    requests: Annotated[int, typer.Option(help="To each home, one after another.")] = 5000,
) -> None:
    """Print a line for each limiter (SQLite, Redis)."""
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(measure_all(Path(directory), requests))


if __name__ == "__main__":
    typer.run(main)
