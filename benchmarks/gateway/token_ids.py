"""The gateway's CPU time for a completion request of token ids.

    python -m benchmarks.gateway.token_ids [--requests 300]

Requests are sent one after another. Each asks for one token, and the engine answers without delay.
`ms` is the CPU time of all the gateway's threads for a request, and `event_loop_ms` is the part of
the event loop's thread. `waits` counts how often a thread waits for another thread or for the
client. Other load on the machine hardly affects these numbers.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from resource import RUSAGE_SELF, RUSAGE_THREAD, getrusage
from typing import Annotated

import msgspec
import numpy as np
import typer
from msgspec.structs import replace

from benchmarks.record import emit
from engine.link.event_messages import Finished, Reused, Tokens
from engine.link.interface import OnEnd
from engine.link.messages import Generate
from engine.link.stats.tier_stats import TierTokens
from tests.doubles.engine.fake_engine import TIMING, WELCOME, FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import MODEL, Served, config_of, serving

CONTEXT, VOCAB = 40_000, 128_256
SIZES = (2048, 8192, 32_000)
_END = b"0\r\n\r\n"


class AtOnce(FakeEngine):
    """An engine that finds every prompt in its cache and answers with one token."""

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield the token, and then the end."""
        size = len(request.token_ids) // 4
        reused = Reused(TierTokens(size - 1))
        await asyncio.sleep(0)
        yield Tokens(request_id=request.request_id, token_ids=(97,), reused=reused, timing=TIMING)
        end = Finished(
            request_id=request.request_id,
            reason="length",
            prompt_tokens=size,
            reused=reused,
            completion_tokens=1,
        )
        if on_end is not None:
            on_end(end)
        yield end


def request(served: Served, size: int) -> bytes:
    """Encode a streamed completion request of `size` token ids."""
    ids = np.random.default_rng(size).integers(10, VOCAB, size).tolist()
    body = msgspec.json.encode({"model": MODEL, "prompt": ids, "max_tokens": 1, "stream": True})
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {served.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def ask(connection: socket.socket, asked: bytes) -> None:
    """Send the request, and read its answer to the end."""
    connection.sendall(asked)
    answer = b""
    while not answer.endswith(_END):
        answer += connection.recv(1 << 16)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer.decode())


def measure(served: Served, size: int, requests: int) -> tuple[float, ...]:
    """Return means per request: the gateway's seconds, the event loop's seconds, the waits."""
    asked = request(served, size)
    (gateway,) = (one for one in threading.enumerate() if one.name == "gateway")
    clock = time.pthread_getcpuclockid(gateway.ident or 0)

    def counts() -> tuple[float, float, float]:
        waits, own = (getrusage(whose).ru_nvcsw for whose in (RUSAGE_SELF, RUSAGE_THREAD))
        return time.process_time() - time.thread_time(), time.clock_gettime(clock), waits - own

    with closing(socket.create_connection(("127.0.0.1", served.port))) as connection:
        for _ in range(20):
            ask(connection, asked)
        before = counts()
        for _ in range(requests):
            ask(connection, asked)
        after = counts()
    return tuple((now - then) / requests for now, then in zip(after, before, strict=True))


def main(requests: Annotated[int, typer.Option(help="Requests of each size.")] = 300) -> None:
    """Measure requests of several sizes, in token ids."""
    with tempfile.TemporaryDirectory() as directory:
        model = write_tiny_model(Path(directory, "model"))
        engine = AtOnce(replace(WELCOME, max_model_len=CONTEXT, vocab_size=VOCAB))
        with serving(config_of(model, Path(directory, "data"), access_log="off"), engine) as served:
            for size in SIZES:
                whole, loop, waits = measure(served, size, requests)
                took = {"ms": whole * 1e3, "event_loop_ms": loop * 1e3, "waits": waits}
                emit("token_ids", tokens=size, **took)


if __name__ == "__main__":
    typer.run(main)
