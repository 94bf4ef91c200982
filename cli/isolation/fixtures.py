"""The fixtures of a test's cells: temporary tenants, groups, a published prefix and a prompt.

All of them are removed at the end, even after Ctrl-C or an error.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cli.errors import ServerRefused
from cli.isolation.cases import Cell
from cli.isolation.reading import ProbePrompt
from cli.isolation.server import MODULE, ServerUnderTest, opening_messages, using_module
from cli.operating.admin_client import GROUPS, PREFIXES, TENANTS, AdminClient, ResourceKind
from cli.operating.audit import MARK
from cli.operating.cache import FLUSH
from cli.operating.prefixes import EVERYONE

_GONE = 404
LIGHT = 0.01
HEAVY = 3.0
_OWN_TOKENS = 4
_WARM_LOOKS, _WARM_LOOK_S = 200, 0.05


@dataclass(frozen=True, slots=True)
class TenantFixture:
    """A temporary tenant and its key."""

    id: str
    key: str


@dataclass(frozen=True, slots=True)
class Fixture:
    """The tenants, prefix and prompt of a cell. Requests add `fields` and `other_fields`."""

    cell: Cell
    first: TenantFixture
    other: TenantFixture
    fields: dict[str, Any]
    other_fields: dict[str, Any]
    prompt: ProbePrompt
    prefix_id: str | None
    published: int


class Fixtures:
    """A creator of temporary tenants and fixtures, which are deleted when `stack` closes."""

    def __init__(self, server: ServerUnderTest, stack: AsyncExitStack) -> None:
        self._server = server
        self._admin = server.admin
        self._stack = stack

    async def tenant(
        self, name: str, group: str | None = None, ceiling: float = 1.0, weight: float = 1.0
    ) -> TenantFixture:
        """Create a tenant with a key. `ceiling` is the tenant's maximum share of every tier."""
        cache = {"ceiling": ceiling}
        made = await self._create(
            TENANTS, {"name": name, "group_id": group, "cache": cache, "weight": weight}
        )
        issued = await self._admin.call("POST", TENANTS.path_of(made["id"], "keys"), {})
        return TenantFixture(made["id"], issued["key"])

    async def pair(self) -> tuple[TenantFixture, TenantFixture]:
        """Create two unrelated tenants with equal parts of the cache."""
        mark = new_mark()
        return await self.tenant(f"{mark}-one"), await self.tenant(f"{mark}-two")

    async def fixture(
        self, cell: Cell, prompt_tokens: int, ceiling: float = 1.0, heavy: float = HEAVY
    ) -> Fixture:
        """Create the fixture of `cell`.

        `ceiling` is the first tenant's maximum share. The other tenant need not keep blocks, so it
        gets a small weight, which leaves the first tenant a larger part of the cache. `heavy` is
        the first tenant's weight if the cell's prompt is a module.
        """
        case, mark = cell.case, new_mark()
        words = {"mark": mark, "first_name": f"{mark}-first"}
        groups = dict[str | None, str]()
        if case.groups[0] is not None:
            groups[case.groups[0]] = words["group_id"] = await self._group(case.groups[0], words)
        # the tenants' parts of the cache must have room for the prompt module
        weight, other_weight = (heavy, 1.0) if case.is_module else (1.0, LIGHT)
        first = await self.tenant(words["first_name"], groups.get(case.groups[0]), ceiling, weight)
        words["first_id"] = first.id
        if case.groups[1] is not None and case.groups[1] not in groups:
            groups[case.groups[1]] = await self._group(case.groups[1], words)
        other = first
        if not case.one_tenant:
            name = (case.other_name or "{mark}-other").format_map(words)
            other = await self.tenant(name, groups.get(case.groups[1]), weight=other_weight)
        prompt, prefix = await self._server.new_text(first.key, prompt_tokens), None
        if case.publishes is not None:
            scope = EVERYONE if case.publishes == EVERYONE else groups[case.publishes]
            prefix = await self._publish(cell, mark, scope, prompt.text)
            prompt = await self._server.new_text(first.key, prompt_tokens, prompt.text)
        fields: dict[str, Any] = _fields(case.salt, case.user, words)
        other_fields: dict[str, Any] = _fields(case.other_salt, case.user, words)
        if case.is_module:
            fields |= await self._module(first, prompt.text)
            other_fields |= await self._module(other, prompt.text)
            prompt = await self._server.new_text(first.key, _OWN_TOKENS)
        return Fixture(
            cell,
            first,
            other,
            fields,
            other_fields,
            prompt,
            prefix["id"] if prefix else None,
            prefix["tokens"] if prefix else 0,
        )

    async def _group(self, name: str, words: dict[str, str]) -> str:
        made: str = (await self._create(GROUPS, {"name": name.format_map(words)}))["id"]
        return made

    async def _module(self, tenant: TenantFixture, text: str) -> dict[str, Any]:
        return using_module(await self._server.store_module(tenant.key, text), MODULE)

    async def _publish(self, cell: Cell, name: str, scope: str, text: str) -> dict[str, Any]:
        is_chat = cell.entry.kind == "chat"
        source = {"messages": opening_messages(text)} if is_chat else {"text": text}
        prefix = await self._create(PREFIXES, {"name": name, "scope": scope, **source})
        await until_warm(self._admin, prefix["id"])
        return prefix

    async def _create(self, kind: ResourceKind, body: dict[str, Any]) -> dict[str, Any]:
        return await self._stack.enter_async_context(_created(self._admin, kind, body))


@asynccontextmanager
async def _created(
    admin: AdminClient, kind: ResourceKind, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Create a resource by POST, and delete it at the end, even if cancelled before an answer."""
    creating = asyncio.ensure_future(admin.call("POST", kind.path, body))
    try:
        yield await asyncio.shield(creating)
    finally:
        made = await creating
        try:
            await admin.call("DELETE", kind.path_of(made["id"]))
        except ServerRefused as refusal:
            if refusal.status != _GONE:
                raise


async def until_warm(admin: AdminClient, prefix_id: str) -> None:
    """Wait until a published prefix is on the device or was refused."""
    for _ in range(_WARM_LOOKS):
        if (await admin.call("GET", PREFIXES.path_of(prefix_id)))["state"] in ("warm", "refused"):
            return
        await asyncio.sleep(_WARM_LOOK_S)


async def flush(server: ServerUnderTest, *tenants: TenantFixture) -> None:
    """Flush the cached prompts of these tenants."""
    for tenant in tenants:
        await server.admin.call("POST", FLUSH, {"tenant": tenant.id})


async def weigh(
    server: ServerUnderTest, fixture: Fixture, weight: float, other_weight: float
) -> None:
    """Give the tenants of a fixture these weights. A single tenant gets `weight`."""
    wanted = {fixture.other.id: other_weight} | {fixture.first.id: weight}
    for tenant_id, new in wanted.items():
        await server.admin.call("PATCH", TENANTS.path_of(tenant_id), {"weight": new})


def new_mark() -> str:
    """Draw a random beginning for the names of tenants and groups."""
    return f"{MARK}-{secrets.token_hex(6)}"


def _fields(salt: str | None, user: str | None, words: dict[str, str]) -> dict[str, str]:
    wanted = {"cache_salt": salt, "user": user, "prompt_cache_key": user}
    return {name: text.format_map(words) for name, text in wanted.items() if text is not None}
