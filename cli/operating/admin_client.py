"""A client of a running server's admin routes, and of the resources that the routes manage.

If the flags do not give the server's URL or key, these are looked up in the data directory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from cli.errors import BadSetting, CliError, NotRatoon, ServerRefused, ServerUnreachable
from cli.json_text import NotJson, decode_json
from cli.operating.server_target import admin_target
from cli.options.options import AdminFlags
from cli.output import print_answer

_TIMEOUT_S = 30.0
Answer = TypeVar("Answer")


class AdminClient:
    """A client of a server's admin routes, for one event loop and use inside `async with`."""

    def __init__(self, url: str, key: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._headers = {"Authorization": f"Bearer {key}"}
        # the operator's key, sent beside a tenant's key to give the request the operator's rights
        self.beside_a_tenants_key = {"X-Ratoon-Operator": key}

    async def __aenter__(self) -> AdminClient:
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call a route and return the decoded answer, if it is not empty.

        Raises ServerRefused, ServerUnreachable or NotRatoon.
        """
        status, content = await self._exchange(method, path, body)
        if status >= 400:
            raise ServerRefused(error_message(content, status), status=status)
        answer = _decoded(content)
        if content and not isinstance(answer, dict):  # all answers of the admin routes are objects
            raise NotRatoon(self._url)
        return answer

    async def octets(self, method: str, path: str, content: bytes | None = None) -> bytes:
        """Send bytes to a route, and return the answer's bytes. Raises the errors of `call`."""
        status, answer = await self._exchange(method, path, None, content)
        if status >= 400:
            raise ServerRefused(error_message(answer, status), status=status)
        return answer

    async def health(self) -> dict[str, Any]:
        """Return `/readyz`'s answer, whatever its status. Raises ServerUnreachable or NotRatoon."""
        _, content = await self._exchange("GET", "/readyz", None)
        answer = _decoded(content)
        if not isinstance(answer, dict) or "status" not in answer:
            raise NotRatoon(self._url)
        return answer

    async def first_model(self) -> str:
        """Return the name of the served model. Raises the errors of `call`."""
        return str((await self.rows("/v1/models", "data"))[0]["id"])

    async def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, content: bytes | None = None
    ) -> tuple[int, bytes]:
        url = self._url + path
        try:
            async with self._session.request(method, url, json=body, data=content) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(self._url, error) from error

    async def rows(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return the list `name` of the server's answer. Raises the errors of `call`."""
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

    try:
        return asyncio.run(run())
    except ServerRefused as error:
        # `. keys.env` exports one server's key, which is then also sent to others.
        if error.status == 401 and flags.admin_key is not None:
            whence = "the key is from --admin-key or RATOON_ADMIN_KEY"
            raise ServerRefused(f"{error.message}; {whence}", status=401) from None
        raise


def unreachable(url: str, error: Exception) -> ServerUnreachable:
    """Return the error of a connection to `url` that failed with `error`, or timed out."""
    return ServerUnreachable(
        f"no answer from {url} ({_why(error)}); is 'ratoon serve' running there?"
    )


def _why(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    return str(cause) or "timed out"


def error_message(content: bytes, status: int) -> str:
    """Describe an error, in the server's words if its answer has any."""
    answer = _decoded(content)
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict) and error.get("message"):
        field, words = error.get("param"), str(error["message"])
        words = words.removeprefix(f"`{field}`: ")  # the message names the field already
        return f"{field}: {words} ({status})" if field else f"{words} ({status})"
    return f"the server answered {status}"


def _decoded(content: bytes) -> Any:
    try:
        return decode_json(content, Any) if content else None
    except NotJson:
        return None


def path_part(name: str) -> str:
    """Quote a name or an id as one part of a path.

    Raises CliError for a name such as `..`, which clients and proxies resolve to another path.
    """
    if name in ("", ".", ".."):
        raise CliError(f"'{name}' is no name and no id")
    return quote(name, safe="")


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of resource, whose routes begin with `path`."""

    word: str
    plural: str

    @property
    def path(self) -> str:
        """The path of the route that lists and creates resources of this kind."""
        return f"/admin/{self.plural}"

    def path_of(self, item_id: str, *more: str) -> str:
        """Return the path of a resource, or of a route below it. Raises CliError."""
        return "/".join([self.path, *map(path_part, (item_id, *more))])

    async def find(self, client: AdminClient, name_or_id: str, given_by: str = "") -> str:
        """Return the id of the resource with this id or name.

        Raises BadSetting if there is no such resource. `given_by` is the flag that named the
        resource, or "" for an argument.
        """
        for item in await client.rows(self.path, self.plural):
            if name_or_id in (item["id"], item["name"]):
                return str(item["id"])
        hint = f"see 'ratoon {self.plural} list'"
        setting = given_by or self.word.upper()
        raise BadSetting(setting, f"there is no {self.word} '{name_or_id}'; {hint}")

    async def names(self, client: AdminClient) -> dict[str, str]:
        """Map each resource's id to its name."""
        return {one["id"]: one["name"] for one in await client.rows(self.path, self.plural)}

    def create(self, admin: AdminFlags, body: dict[str, Any]) -> Any:
        """Create a resource of this kind, and return the server's answer."""
        return with_admin(admin, lambda client: client.call("POST", self.path, body))

    def change(
        self,
        admin: AdminFlags,
        method: str,
        name_or_id: str,
        *more: str,
        body: dict[str, Any] | None = None,
        said: str,
    ) -> None:
        """Send a change to a resource or a route below it. Print the answer as JSON, or `said`."""
        answer = self.call(admin, method, name_or_id, *more, body=body)
        print_answer(answer, said, as_json=admin.json)

    def call(
        self,
        admin: AdminFlags,
        method: str,
        name_or_id: str,
        *more: str,
        body: dict[str, Any] | None = None,
    ) -> Any:
        """Send a request to a resource, or to a route below it, and return the answer."""

        async def use(client: AdminClient) -> Any:
            path = self.path_of(await self.find(client, name_or_id), *more)
            return await client.call(method, path, body)

        return with_admin(admin, use)


TENANTS = ResourceKind("tenant", "tenants")
GROUPS = ResourceKind("group", "groups")
PREFIXES = ResourceKind("prefix", "prefixes")
