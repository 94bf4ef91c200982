"""The server that `benchmarks.flood` asks, running or started here, and tenants for a while.

Knows: how to start a server, its admin endpoints. Does not know: what is asked, or measured.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer

from benchmarks.running import running
from benchmarks.shapes import model_directory

START_S = 120.0
HTTP_S = 60.0  # for an answer of an admin endpoint
BOUNDS = (
    "max_batch_tokens",
    "max_batch_tokens_beside_decodes",
    "max_batch_tokens_beside_visitors",
)


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The server that is asked, or how one is started."""

    url: Annotated[
        str | None, typer.Option("--url", help="URL of a running server. Left out: start one.")
    ] = None
    admin_key: Annotated[
        str | None, typer.Option("--admin-key", help="The admin key of that server.")
    ] = None
    vocab: Annotated[int, typer.Option("--vocab", help="Token ids are drawn below this.")] = 2000
    max_batch_tokens: Annotated[
        int | None, typer.Option("--max-batch-tokens", help="Setting of a server that is started.")
    ] = None
    max_batch_tokens_beside_decodes: Annotated[
        int | None, typer.Option("--max-batch-tokens-beside-decodes", help="Likewise.")
    ] = None
    max_batch_tokens_beside_visitors: Annotated[
        int | None, typer.Option("--max-batch-tokens-beside-visitors", help="Likewise.")
    ] = None


@dataclass(frozen=True, slots=True)
class Place:
    """A server, its admin key, and its model."""

    url: str
    admin_key: str
    model: str
    vocab: int


@contextmanager
def tenants(place: Place, names: Sequence[str]) -> Iterator[list[str]]:
    """A key of a new tenant for each name; the tenants are removed behind the block."""
    headers = {"Authorization": f"Bearer {place.admin_key}"}
    mark = secrets.token_hex(4)
    made: list[str] = []
    with httpx.Client(base_url=place.url, headers=headers, timeout=HTTP_S) as client:
        try:
            keys = []
            for name in names:
                answer = client.post("/admin/tenants", json={"name": f"flood-{mark}-{name}"})
                made.append(answer.raise_for_status().json()["id"])
                issued = client.post(f"/admin/tenants/{made[-1]}/keys", json={})
                keys.append(issued.raise_for_status().json()["key"])
            yield keys
        finally:
            for tenant in made:
                client.delete(f"/admin/tenants/{tenant}").raise_for_status()


@contextmanager
def place_of(server: ServerFlags) -> Iterator[Place]:
    """The server of the flags, or one that is started here."""
    if server.url is not None and server.admin_key is not None:
        yield looked_at(server.url.rstrip("/"), server.admin_key, server.vocab)
        return
    settings = {"cache_tokens": "65536"}
    bounds = {name: getattr(server, name) for name in BOUNDS}
    settings |= {name: str(bound) for name, bound in bounds.items() if bound is not None}
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        model = model_directory("handbook", Path(scratch))
        with running(model, Path(scratch) / "data", start_s=START_S, **settings) as started:
            yield looked_at(started.url, started.admin_key, server.vocab)


def looked_at(url: str, admin_key: str, vocab: int) -> Place:
    """The server, and the name of its model."""
    place = Place(url, admin_key, "", vocab)
    with tenants(place, ["looks"]) as (key,):
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.get(url + "/v1/models", headers=headers, timeout=HTTP_S)
        model = answer.raise_for_status().json()["data"][0]["id"]
    return Place(url, admin_key, model, vocab)
