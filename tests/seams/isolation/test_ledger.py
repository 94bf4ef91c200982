"""Charged usage equals the engine's own count, for clients that read slowly, stop or leave.

`tests/gateway/usage/ledger` tests a thousand requests with faulty engines. Here a whole server
answers. `RATOON_PROPERTY_SEED` selects other requests.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

from gateway.tenant_limits import TokenCounts
from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server

REQUESTS, AT_ONCE = 32, 4
PATIENCE_S = 60.0
STORED_S = 20.0
TEXT = "The support code for Berlin is 4821. The harbour of Hamburg is "


@dataclass(frozen=True)
class Reader:
    """A reader that waits after every `at_once` bytes, and leaves after `leaves_after` bytes."""

    at_once: int
    wait_s: float
    leaves_after: int


def some_reader(random: Random) -> Reader:
    """Draw a reader that reads everything, reads slowly in pieces, or reads next to nothing."""
    return random.choice(
        [
            Reader(1 << 16, 0.0, 1 << 30),
            Reader(2000, 0.02, 1 << 30),
            Reader(4000, 0.05, random.randrange(30_000)),
            Reader(1 << 16, 0.0, random.randrange(1, 20_000)),
            Reader(100, 0.5, 100),
        ]
    )


def some_body(random: Random, n: int) -> dict[str, Any]:
    stream = random.random() < 0.7
    body: dict[str, Any] = {
        "model": "handbook",
        "prompt": TEXT[: random.randrange(2, len(TEXT))] * random.choice([1, 6]),
        "n": n,
        "max_tokens": random.choice([0, 1, 8, 40, 120]),
        "temperature": random.choice([0, 1]),
        "ignore_eos": random.random() < 0.5,
        "stream": stream,
    }
    if random.random() < 0.5:
        body["stop"] = random.sample([" is", "a", "the", "\n", "1"], 2)
    if random.random() < 0.3:
        body["logprobs"] = 5
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


def ask(server: Server, key: str, body: dict[str, Any], reader: Reader) -> bytes:
    """Send a request, and return the part of the answer that was read, with the head."""
    sent = json.dumps(body).encode()
    address = urlsplit(server.url)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    head += f"connection: close\r\ncontent-length: {len(sent)}\r\n\r\n"
    read = b""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_S)
        connection.connect((address.hostname, address.port))
        connection.sendall(head.encode() + sent)
        while len(read) < reader.leaves_after and (data := connection.recv(reader.at_once)):
            read += data
            time.sleep(reader.wait_s)
    return read


def told(body: dict[str, Any], read: bytes) -> int | None:
    """Return the completion tokens in an answer's usage, or None if the reader left before it."""
    if not (b"data: [DONE]" in read if body["stream"] else read.endswith(b"}")):
        return None
    lines = [line for line in read.split(b"\n") if line.startswith((b"data: {", b"{"))]
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    usages = [event["usage"] for event in events if event.get("usage")]
    return int(usages[-1]["completion_tokens"])


@dataclass(frozen=True)
class Tenant:
    """A new tenant of the server."""

    server: Server
    id: str
    key: str

    def engine_count(self) -> TokenCounts:
        """Return the engine's own count."""
        [row] = [one for one in self.server.stats()["tenants"] if one["id"] == self.id]
        return TokenCounts(row["computed_tokens"], row["hit_tokens"], row["generated_tokens"])

    def usage(self) -> TokenCounts:
        """Return the charged tokens."""
        with self.server.client(self.key) as client:
            rows = client.get("/v1/usage").json()["usage"]
        names = ("computed_tokens", "cached_tokens", "generated_tokens")
        return TokenCounts(*(sum(row[name] for row in rows) for name in names))

    def settled(self) -> TokenCounts:
        """Return the usage, once it is stored and nothing runs."""
        with suppress(TimeoutError):
            wait_for(lambda: self.usage().generated == self.engine_count().generated, STORED_S)
        return self.usage()


def tenant(server: Server) -> Tenant:
    with server.client(server.admin_key) as client:
        made = client.post("/admin/tenants", json={"name": f"ledger-{uuid.uuid4().hex}"}).json()
        issued = client.post(f"/admin/tenants/{made['id']}/keys", json={}).json()
    return Tenant(server, made["id"], issued["key"])


def test_usage_is_the_engine_s_own_count(server: Server) -> None:
    random = Random(int(os.environ.get("RATOON_PROPERTY_SEED", "0")))
    alone, several = tenant(server), tenant(server)
    asked = [
        (one, some_body(random, 1 if one is alone else random.randrange(2, 5)))
        for _ in range(REQUESTS // 2)
        for one in (alone, several)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [
            (body, pool.submit(ask, server, one.key, body, some_reader(random)))
            for one, body in asked
        ]
        tokens = [told(body, answer.result()) for body, answer in answers]
    whole = [number for number in tokens if number is not None]
    assert REQUESTS // 4 < len(whole) < REQUESTS, "some are read whole, and some are left"
    assert alone.settled() == alone.engine_count()
    charged, counted = several.settled(), several.engine_count()
    assert (charged.computed, charged.generated) == (counted.computed, counted.generated)
    assert charged.cached < counted.cached, "once for all choices"
    assert sum(whole) < alone.usage().generated + several.usage().generated
