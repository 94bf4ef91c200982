"""The cast of a cell: temporary tenants, groups and published prefixes, created and removed.

Every name begins with the run's random mark, by which leftovers are found at the end.

Knows: the admin routes that create and delete. Does not know: what the tenants ask.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from cli.admin_client import AdminClient
from cli.cache import FLUSH
from cli.errors import ServerRefused
from cli.groups import GROUPS
from cli.isolation.asking import opening_messages
from cli.isolation.cells import Case, Kind, Side
from cli.prefixes import EVERYONE, PREFIXES
from cli.tenants import TENANTS, tenant_path

MARK = "verify-isolation"
_GONE = 404

_WARM_LOOKS, _WARM_LOOK_S = 200, 0.05


class Member(msgspec.Struct, frozen=True):
    """A temporary tenant and its key."""

    id: str
    key: str


class Opening(msgspec.Struct, frozen=True):
    """A temporary published prefix: its text, and how many tokens of each continuation it is."""

    id: str
    text: str
    tokens: int


class Cast(msgspec.Struct, frozen=True):
    """The tenants and groups of one cell; `words` replace the braces in the case's strings."""

    first: Member
    second: Member
    groups: dict[str, str]  # ids by the names in the case
    words: dict[str, str]
    opening: Opening | None = None

    @property
    def published(self) -> int:
        """Tokens that are published."""
        return 0 if self.opening is None else self.opening.tokens

    def key(self, side: Side) -> str:
        """The key that a side asks with."""
        return self.first.key if side.tenant == "first" else self.second.key

    def fields(self, side: Side) -> dict[str, Any]:
        """The fields of a side's request besides the prompt."""
        said = {name: self.said(value) for name, value in side.fields}
        return said if side.salt is None else {**said, "cache_salt": self.said(side.salt)}

    def said(self, text: str) -> str:
        """`text` with its braces replaced by the cast's words."""
        return text.format_map(self.words)


class Stage:
    """Creates and removes the casts of one run."""

    def __init__(
        self, client: AdminClient, mark: str | None = None, groups: Iterable[str] = ()
    ) -> None:
        self._client = client
        self.mark = mark or f"{MARK}-{secrets.token_hex(4)}"
        self._made = secrets.randbits(32)  # so that a continued run uses no name twice
        self._groups = set(groups)  # ids; some have another's name instead of the mark

    @property
    def groups(self) -> list[str]:
        """The ids of the groups that are there now."""
        return sorted(self._groups)

    async def enter(self, case: Case, ceiling: float = 1.0) -> Cast:
        """Create the tenants and groups of a case.

        `ceiling` is the first tenant's, as a share of every tier.
        """
        self._made += 1
        words = {"mark": f"{self.mark}-{self._made:x}"}
        words["first_name"] = f"{words['mark']}-first"
        groups: dict[str, str] = {}
        if case.first_group:
            groups[case.first_group] = await self._group(case.first_group.format_map(words))
            words["first_group_id"] = groups[case.first_group]
        first = await self.tenant(words["first_name"], groups.get(case.first_group or ""), ceiling)
        words["first_id"] = first.id
        if case.second_group and case.second_group not in groups:
            groups[case.second_group] = await self._group(case.second_group.format_map(words))
        second = first
        if "second" in (case.asker.tenant, case.other.tenant):
            name = (case.second_name or "{mark}-second").format_map(words)
            second = await self.tenant(name, groups.get(case.second_group or ""))
        return Cast(first, second, groups, words)

    async def publish(self, cast: Cast, case: Case, kind: Kind, text: str) -> Cast:
        """The cast with `text` published as the beginning of prompts, if the case needs that."""
        if case.publishes is None:
            return cast
        scope = EVERYONE if case.publishes == EVERYONE else cast.groups[case.publishes]
        source = {"messages": opening_messages(text)} if kind == "chat" else {"text": text}
        wanted = {"name": cast.words["mark"], "scope": scope, **source}
        made = await self._client.call("POST", PREFIXES, wanted)
        published = msgspec.structs.replace(cast, opening=Opening(made["id"], text, made["tokens"]))
        await self.warm(published)
        return published

    async def warm(self, cast: Cast) -> None:
        """Wait until the cast's published prefix is on the device, or was refused."""
        if cast.opening is None:
            return
        for _ in range(_WARM_LOOKS):
            shown = await self._client.call("GET", f"{PREFIXES}/{cast.opening.id}")
            if shown["state"] in ("warm", "refused"):
                return
            await asyncio.sleep(_WARM_LOOK_S)

    async def tenant(self, name: str, group: str | None = None, ceiling: float = 1.0) -> Member:
        """A new tenant with a key."""
        wanted = {"name": name, "group_id": group, "cache": {"ceiling": ceiling}}
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
        """Remove a cast: the prefix and the tenants first, since a group must be empty."""
        if cast.opening is not None:
            await self._remove(f"{PREFIXES}/{cast.opening.id}")
        for tenant in dict.fromkeys((cast.first.id, cast.second.id)):
            await self._remove(tenant_path(tenant))
        for group in cast.groups.values():
            await self._remove(f"{GROUPS}/{group}")
            self._groups.discard(group)

    async def clear(self) -> int:
        """Remove everything with the run's mark; returns how many there were."""
        tenants = await self._marked(TENANTS, "tenants")
        groups = self._groups | set(await self._marked(GROUPS, "groups"))
        prefixes = await self._marked(PREFIXES, "prefixes")
        paths = [tenant_path(tenant) for tenant in tenants]
        paths += [f"{PREFIXES}/{prefix}" for prefix in prefixes]
        paths += [f"{GROUPS}/{group}" for group in groups]
        for path in paths:
            await self._remove(path)
        return len(paths)

    async def _group(self, name: str) -> str:
        made: str = (await self._client.call("POST", GROUPS, {"name": name}))["id"]
        self._groups.add(made)
        return made

    async def _marked(self, path: str, rows: str) -> list[str]:
        try:
            found = await self._client.rows(path, rows)
        except ServerRefused as refusal:
            if refusal.status == _GONE:
                return []  # the server has none of the kind
            raise
        return [row["id"] for row in found if row["name"].startswith(self.mark)]

    async def _remove(self, path: str) -> None:
        try:
            await self._client.call("DELETE", path)
        except ServerRefused as refusal:
            if refusal.status != _GONE:
                raise
