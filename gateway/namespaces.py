"""Who shares with whom: the namespaces along a prompt, decided once.

    [published for everyone, or for the group]     as many whole blocks as are published
     `- behind it, without a salt: the group if the tenant is in one, else the tenant
        with a salt: below the tenant, whatever its group

Sharing goes up, never sideways: what a client sends, its tokens and its salt, only narrows what
its key gives it. A published namespace holds nothing but published tokens, whoever computed them.

Scopes are tuples, framed part by part (`derive_namespace`), and no two kinds of them are alike:

    ("published",)   ("published", "group", id)   ("all",)   ("all", "salt", s)
    ("group", id)    ("tenant", id)               ("tenant", id, "salt", s)

Knows: scopes and the server's secret. Does not know: what is published (`published_index.py`
does), or blocks beyond their number.
"""

from __future__ import annotations

from gateway.caller import Caller
from gateway.published_index import PublishedIndex
from gateway.state.records import EVERYONE
from gateway.tokenizer import TokenIds
from prefix_cache.namespace import Namespace, NamespacePath, derive_namespace


class ScopeMissing(ValueError):
    """A caller without a tenant id, or with an empty group id: its scope would be too wide."""


class Namespaces:
    """Derives namespaces and paths. `share_all`: all tenants share one namespace."""

    def __init__(
        self, secret: bytes, *, share_all: bool = False, published: PublishedIndex | None = None
    ) -> None:
        self._secret = secret
        self._share_all = share_all
        self._published = published or PublishedIndex()

    def path(
        self,
        caller: Caller,
        salt: str | None,
        token_ids: TokenIds,
        fingerprint: bytes,
        block_size: int,
    ) -> NamespacePath:
        """The namespaces along a prompt; ScopeMissing if the caller's scope is incomplete."""
        own = self.own(caller, salt, fingerprint)
        match = self._published.match(token_ids, caller.group_id, block_size)
        if match is None:
            return NamespacePath.single(own)
        return NamespacePath(((0, self.published(match.scope, fingerprint)), (match.blocks, own)))

    def own(self, caller: Caller, salt: str | None, fingerprint: bytes) -> Namespace:
        """The namespace of everything that is not published."""
        return derive_namespace(self._secret, fingerprint, self._scope(caller, salt))

    def published(self, scope: str, fingerprint: bytes) -> Namespace:
        """The namespace of what is published for everyone, or for one group."""
        whose = () if scope == EVERYONE else ("group", scope)
        return derive_namespace(self._secret, fingerprint, ("published", *whose))

    def _scope(self, caller: Caller, salt: str | None) -> tuple[str, ...]:
        if not caller.tenant_id or caller.group_id == "":
            raise ScopeMissing("the caller has no tenant id, or an empty group id")
        if self._share_all:
            return ("all",) if salt is None else ("all", "salt", salt)
        if salt is not None:
            return ("tenant", caller.tenant_id, "salt", salt)
        if caller.group_id is not None:
            return ("group", caller.group_id)
        return ("tenant", caller.tenant_id)
