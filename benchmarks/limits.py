"""What authentication and limits add to a request: held on this machine, or in Redis on loopback.

    python -m benchmarks.limits

One request after another of a tenant with every kind of limit is identified by its key, reserved
and settled. `bare` is the same without limits: the time of identifying the key alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import uvloop

from cli.percentiles import percentile
from engine.messages import Generate, SamplingParams
from gateway.admission import Admitted, TextRules
from gateway.keyring import Keyring
from gateway.limits.gate import LimitGate
from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import Limiter
from gateway.limits.limits import MAX_RATE, Budget, Limits
from gateway.limits.prices import Prices, Tokens
from gateway.limits.redis import RedisLimiter
from gateway.limits.sqlite import SqliteLimiter
from gateway.state.records import Tenant
from gateway.state.redis_link import connect
from gateway.state.sqlite import SqliteStore
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.redis_server import redis_server

EVERYTHING = Limits(
    requests_per_minute=MAX_RATE,
    tokens_per_minute=MAX_RATE,
    max_concurrent=1000,
    budget=Budget(units=1e9),
)
PROMPT_TOKENS = 500
PEPPER = b"p" * 32


def admitted() -> Admitted:
    """One choice of one prompt."""
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
    return Admitted((generate,), 1, PROMPT_TOKENS, TextRules())


async def measure(gate: LimitGate, keyring: Keyring, key: str, requests: int) -> list[float]:
    """Seconds of each of `requests`."""
    request, used = admitted(), Tokens(computed=PROMPT_TOKENS, generated=100)
    taken = []
    for _ in range(requests):
        began = time.perf_counter()
        caller = await keyring.identify(key)
        async with gate.held(caller, request, lambda: used):
            pass
        taken.append(time.perf_counter() - began)
    return taken


@asynccontextmanager
async def a_key(directory: Path, limits: Limits) -> AsyncIterator[tuple[Keyring, str]]:
    """A keyring and a key in it, of a tenant with `limits`."""
    store = SqliteStore(directory / "state.sqlite")
    await store.create_tenant(Tenant(id="tn", name="tn", created_at=0.0, limits=limits))
    keyring = Keyring(store, PEPPER)
    try:
        yield keyring, (await keyring.issue("tn")).secret
    finally:
        await store.close()


async def told(name: str, limiter: Limiter, limits: Limits, requests: int) -> None:
    """Measure one limiter and print its line."""
    with tempfile.TemporaryDirectory() as directory:
        async with (
            a_key(Path(directory), limits) as (keyring, key),
            LimitGate(limiter, Prices()).kept() as gate,
        ):
            await measure(gate, keyring, key, 200)
            taken = await measure(gate, keyring, key, requests)
    p50, p99 = (percentile(sorted(taken), percent) * 1e3 for percent in (50, 99))
    print(f"{name:<10} p50 {p50:.3f} ms   p99 {p99:.3f} ms")


async def measure_all(requests: int) -> None:
    """All homes, one after another."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        bare = SqliteLimiter(directory / "bare.sqlite")
        await told("bare", bare, Limits(), requests)
        await told("embedded", SqliteLimiter(directory / "l.sqlite"), EVERYTHING, requests)
        with redis_server(directory) as server:
            shared = GuardedLimiter(
                RedisLimiter(connect(server.url, timeout_s=10, as_text=True), timeout_s=10),
                replicas=1,
            )
            await told("Redis", shared, EVERYTHING, requests)


def main(
    requests: Annotated[int, typer.Option(help="To each home, one after another.")] = 5000,
) -> None:
    """Print one line a home."""
    uvloop.run(measure_all(requests))


if __name__ == "__main__":
    typer.run(main)
