"""The names of the cache's namespaces for the operator, mostly their tenants' names.

A namespace is derived from a secret, so it tells nothing by itself. To name a namespace, the
namespaces of published prefixes, groups and tenants with blocks are derived again and compared with
it. If none is equal, it is a tenant's namespace with a salt or an adapter.
"""

from typing import NamedTuple

from gateway.sharing.namespaces import Namespaces
from gateway.state.records import EVERYONE

MOST = 20_000


class NamespaceName(NamedTuple):
    """A namespace's name. `tenant` is None for a namespace of several tenants."""

    label: str
    tenant: str | None


class ShownNamespaceNames:
    """The finder of namespaces' names, for one process."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._fingerprint = b""
        self._scopes: dict[bytes, tuple[str, str]] = {}
        self._derived: set[tuple[str, str]] = set()

    def name(
        self,
        namespace: bytes,
        owner: str,
        names: dict[str, str],
        groups: dict[str, str],
        fingerprint: bytes,
    ) -> NamespaceName:
        """Name a namespace in which the tenant `owner` has a KV block.

        `names` are tenants' names by id.
        """
        if fingerprint != self._fingerprint or len(self._derived) > MOST:
            self._fingerprint, self._scopes, self._derived = fingerprint, {}, set()
        self._derive("published", EVERYONE)
        self._derive("tenant", owner)
        for group in groups:
            self._derive("published", group)
            self._derive("group", group)
        kind, scope = self._scopes.get(namespace, ("salt", owner))
        who = names.get(owner, owner)
        if kind == "tenant":
            return NamespaceName(who, owner)
        if kind == "salt":
            return NamespaceName(f"{who}, with a salt or an adapter", owner)
        if kind == "group":
            return NamespaceName(f"group {groups.get(scope, scope)}", None)
        whom = "everyone" if scope == EVERYONE else f"group {groups.get(scope, scope)}"
        return NamespaceName(f"published for {whom}", None)

    def _derive(self, kind: str, scope: str) -> None:
        if (kind, scope) in self._derived:
            return
        self._derived.add((kind, scope))
        derive = {
            "published": self._namespaces.published,
            "tenant": self._namespaces.of_tenant,
            "group": self._namespaces.of_group,
        }[kind]
        self._scopes[derive(scope, self._fingerprint)] = (kind, scope)
