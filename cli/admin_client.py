"""A client of the admin routes of a running server.

Knows: HTTP, the admin key, the shape of the server's errors. Does not know: what the routes are
for (`tenants`, `cache`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import msgspec

from cli.client_options import AdminFlags
from cli.errors import NotRatoon, ServerRefused, ServerUnreachable
from cli.target import admin_target

_TIMEOUT_S = 30.0
Answer = TypeVar("Answer")


class AdminClient:
    """The admin routes of one server. For one event loop; used inside `async with`."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self.beside_a_tenants_key = {"X-Ratoon-Operator": key}  # makes a request the operator's

    async def __aenter__(self) -> AdminClient:
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The decoded answer; None when it is empty.

        Raises ServerRefused, ServerUnreachable or NotRatoon.
        """
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(self._url, error) from error
        if response.status >= 400:
            raise ServerRefused(error_message(content, response.status), status=response.status)
        answer = _decoded(content)
        if content and not isinstance(answer, dict):  # as all answers of the admin routes are
            raise NotRatoon(self._url)
        return answer

    async def rows(self, path: str, name: str) -> list[dict[str, Any]]:
        """The list `name` of the server's answer; raises as `call`."""
        answer = await self.call("GET", path)
        if answer is None or name not in answer:
            raise NotRatoon(self._url)
        rows: list[dict[str, Any]] = answer[name]
        return rows


def with_admin(flags: AdminFlags, use: Callable[[AdminClient], Awaitable[Answer]]) -> Answer:
    """Call `use` with a client of the server that `flags` name, and return its result."""
    url, key = admin_target(flags)

    async def run() -> Answer:
        async with AdminClient(url, key) as client:
            return await use(client)

    return asyncio.run(run())


def unreachable(url: str, error: Exception) -> ServerUnreachable:
    """The error where a connection to `url` failed with `error`, or timed out."""
    why = str(error) or "timed out"
    return ServerUnreachable(f"no answer from {url} ({why}); is 'ratoon serve' running there?")


def error_message(content: bytes, status: int) -> str:
    """What went wrong, in the server's words if its answer has any."""
    answer = _decoded(content)
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict) and error.get("message"):
        field = f"{error['param']}: " if error.get("param") else ""
        return f"{field}{error['message']} ({status})"
    return f"the server answered {status}"


def _decoded(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content) if content else None
    except msgspec.DecodeError:
        return None
