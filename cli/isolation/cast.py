"""Temporary tenants and groups: made for a cell, and gone behind it.

Every name begins with the run's random mark, by which what is left is found at the end.

Knows: the admin routes that make and remove. Does not know: what the tenants ask.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from cli.admin_client import AdminClient
from cli.cache import FLUSH
from cli.errors import ServerRefused
from cli.groups import GROUPS
from cli.isolation.plan import Case, Side
from cli.tenants import TENANTS, tenant_path

MARK = "verify-isolation"
_GONE = 404

# Of the cells' tenants: so little of the cache is theirs that others can push them out of a tier.
LIGHT = 0.05


class Member(msgspec.Struct, frozen=True):
    """A temporary tenant and its key."""

    id: str
    key: str


class Cast(msgspec.Struct, frozen=True):
    """Who plays one cell; `words` are what a case's braces stand for."""

    first: Member
    second: Member
    groups: list[str]
    words: dict[str, str]

    def key(self, side: Side) -> str:
        """The key that a side asks with."""
        return self.first.key if side.tenant == "first" else self.second.key

    def fields(self, side: Side) -> dict[str, Any]:
        """What a side's request says beside the prompt."""
        said = {name: self.said(value) for name, value in side.fields}
        return said if side.salt is None else {**said, "cache_salt": self.said(side.salt)}

    def said(self, text: str) -> str:
        """`text` with the cast's words in it."""
        return text.format_map(self.words)


class Stage:
    """Makes casts and removes them. One run's, whose mark it bears."""

    def __init__(
        self, client: AdminClient, mark: str | None = None, groups: Iterable[str] = ()
    ) -> None:
        self._client = client
        self.mark = mark or f"{MARK}-{secrets.token_hex(4)}"
        self._made = secrets.randbits(32)  # a run that goes on must not name anything twice
        self._groups = set(groups)  # some bear another's name in place of the mark

    @property
    def groups(self) -> list[str]:
        """The ids of the groups that are there now."""
        return sorted(self._groups)

    async def enter(self, case: Case) -> Cast:
        """The tenants and groups of a case, as they are when the first asks."""
        self._made += 1
        words = {"mark": f"{self.mark}-{self._made:x}"}
        words["first_name"] = f"{words['mark']}-first"
        groups: dict[str, str] = {}
        if case.first_group:
            groups[case.first_group] = await self._group(case.first_group.format_map(words))
            words["first_group_id"] = groups[case.first_group]
        first = await self.tenant(
            words["first_name"], groups.get(case.first_group or ""), weight=LIGHT
        )
        words["first_id"] = first.id
        if case.second_group and case.second_group not in groups:
            groups[case.second_group] = await self._group(case.second_group.format_map(words))
        second = first
        if "second" in (case.asker.tenant, case.other.tenant):
            name = (case.second_name or "{mark}-second").format_map(words)
            second = await self.tenant(name, groups.get(case.second_group or ""), weight=LIGHT)
        return Cast(first, second, list(groups.values()), words)

    async def tenant(self, name: str, group: str | None = None, *, weight: float = 1.0) -> Member:
        """A new tenant with a key."""
        wanted = {"name": name, "group_id": group, "weight": weight}
        made = await self._client.call("POST", TENANTS, wanted)
        issued = await self._client.call("POST", tenant_path(made["id"], "keys"), {})
        return Member(made["id"], issued["key"])

    async def second_leaves(self, cast: Cast) -> None:
        """Take the second tenant out of its group."""
        await self._client.call("PATCH", tenant_path(cast.second.id), {"group_id": None})

    async def forget(self, cast: Cast) -> None:
        """Let the cache forget what the cast's tenants asked."""
        for tenant in dict.fromkeys((cast.first.id, cast.second.id)):
            await self._client.call("POST", FLUSH, {"tenant": tenant})

    async def leave(self, cast: Cast) -> None:
        """Remove a cast."""
        for tenant in dict.fromkeys((cast.first.id, cast.second.id)):
            await self._remove(tenant_path(tenant))
        for group in cast.groups:
            await self._remove(f"{GROUPS}/{group}")
            self._groups.discard(group)

    async def clear(self) -> int:
        """Remove whatever bears the run's mark, also what nobody remembers; how many those were."""
        tenants = await self._marked(TENANTS, "tenants")
        groups = self._groups | set(await self._marked(GROUPS, "groups"))
        for path in (*map(tenant_path, tenants), *(f"{GROUPS}/{group}" for group in groups)):
            await self._remove(path)
        return len(tenants) + len(groups)

    async def _group(self, name: str) -> str:
        made: str = (await self._client.call("POST", GROUPS, {"name": name}))["id"]
        self._groups.add(made)
        return made

    async def _marked(self, path: str, rows: str) -> list[str]:
        found = await self._client.rows(path, rows)
        return [row["id"] for row in found if row["name"].startswith(self.mark)]

    async def _remove(self, path: str) -> None:
        try:
            await self._client.call("DELETE", path)
        except ServerRefused as refusal:
            if refusal.status != _GONE:
                raise
