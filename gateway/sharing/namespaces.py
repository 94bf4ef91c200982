"""The namespaces along a prompt. Only this module decides which requests share blocks.

    [published for everyone, or for the group]     as many whole blocks as are published
     `- then, without a salt: the group's namespace if the tenant is in one, else the tenant's
        with a salt: a namespace below the tenant, even if the tenant is in a group

The tokens and the salt that a client sends can only narrow the sharing that its key allows. A
published namespace holds only published tokens, whichever tenant computed them.

Scopes are tuples. `derive_namespace` writes each part after its length, so that different scopes
have different encodings:

    ("published",)   ("published", "group", id)   ("all",)   ("all", "salt", s)
    ("group", id)    ("tenant", id)               ("tenant", id, "salt", s)

For prompt modules, and for a prompt's own blocks after modules, "module" and a digest are added.
The first bytes of such a namespace depend only on the schema, not on the salt or the adapter. All
blocks of a schema can therefore be dropped by these bytes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engine.link.messages import pack_token_ids
from gateway.caller import Caller
from gateway.state.records import EVERYONE
from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import Namespace, NamespacePath, derive_namespace

_TOKEN_BYTES = 4
# number of a namespace's first bytes, which name the module schema
_FIRST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Match:
    """A match: a prompt's first `blocks` blocks are published for `scope`."""

    scope: str
    blocks: int  # number of the prompt's first KV blocks that are published, at least 1


@dataclass(frozen=True, slots=True)
class _ScopeIndex:
    """The published prefixes of one scope: their whole blocks as bytes, sorted."""

    prefixes: tuple[bytes, ...]
    longest: int  # length of the longest prefix, in bytes

    def common_bytes(self, prompt: bytes) -> int:
        wanted = prompt[: self.longest]
        at = bisect_left(self.prefixes, wanted)
        around = self.prefixes[max(at - 1, 0) : at + 1]
        return max((_common_bytes(prefix, wanted) for prefix in around), default=0)

    def whole_bytes(self, prompt: bytes) -> int:
        wanted = prompt[: self.longest]
        while at := bisect_right(self.prefixes, wanted):
            last = self.prefixes[at - 1]
            wanted = wanted[: _common_bytes(last, wanted)]
            if len(wanted) == len(last):
                break
        return len(wanted) if at else 0


class PublishedIndex:
    """An index of published prefixes, which counts the leading published blocks of a prompt.

    The prefixes of a scope are sorted by their bytes. In that order, a prompt's place is next to
    the prefix with which it has the most leading bytes in common. A lookup is therefore a binary
    search and two comparisons, however many prefixes there are. Tokens are compared, not hashes. A
    prompt that leaves a published prefix half-way shares that half, unless the model has recurrent
    layers. The recurrent state there would come from another tenant's request.

    Several threads read the index, and one thread replaces its whole content.
    """

    def __init__(self) -> None:
        self._indexes: tuple[int, bool, dict[str, _ScopeIndex]] = (0, False, {})

    def renew(
        self,
        block_size: int,
        prefixes: Iterable[tuple[str, TokenIds]],
        *,
        has_states: bool = False,
    ) -> None:
        """Replace the index by the whole blocks of these prefixes, each with its scope."""
        by_scope: dict[str, list[bytes]] = {}
        for scope, token_ids in prefixes:
            whole = len(token_ids) // block_size * block_size
            by_scope.setdefault(scope, []).append(pack_token_ids(token_ids[:whole]))
        indexes = {
            scope: _ScopeIndex(tuple(sorted(whole)), max(map(len, whole)))
            for scope, whole in by_scope.items()
        }
        self._indexes = (block_size, has_states, indexes)

    def match(self, token_ids: TokenIds, group_id: str | None, block_size: int) -> Match | None:
        """Find the longest run of leading blocks that is published for everyone or for this group.

        Returns None if nothing is published, or if the index was made for another block size.
        """
        size, has_states, indexes = self._indexes
        if size != block_size or not indexes:
            return None
        prompt = pack_token_ids(token_ids)
        scopes = (EVERYONE,) if group_id is None else (EVERYONE, group_id)
        shared_bytes = _ScopeIndex.whole_bytes if has_states else _ScopeIndex.common_bytes
        found = [
            Match(scope, shared_bytes(indexes[scope], prompt) // (_TOKEN_BYTES * size))
            for scope in scopes
            if scope in indexes
        ]
        # takes the first of the longest matches
        best = max(found, key=lambda match: match.blocks, default=None)
        return best if best is not None and best.blocks else None


def _common_bytes(left: bytes, right: bytes) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    ours, others = (np.frombuffer(side, np.uint8, length) for side in (left, right))
    return int((ours != others).argmax())


class ScopeMissing(ValueError):
    """The error of a caller with no tenant id or an empty group id.

    Its namespace would be shared too widely.
    """


class Namespaces:
    """The maker of namespaces along prompts. With `share_all`, all tenants share one namespace."""

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
        """Derive the namespaces along a prompt; raise ScopeMissing for an incomplete scope."""
        own = self.own(caller, salt, fingerprint)
        return self.path_to(own, caller, token_ids, fingerprint, block_size)

    def path_to(
        self,
        own: Namespace,
        caller: Caller,
        token_ids: TokenIds,
        fingerprint: bytes,
        block_size: int,
    ) -> NamespacePath:
        """Derive the namespaces along a prompt of `caller` whose last namespace is `own`."""
        match = self._published.match(token_ids, caller.group_id, block_size)
        if match is None:
            return NamespacePath.single(own)
        return NamespacePath(((0, self.published(match.scope, fingerprint)), (match.blocks, own)))

    def own(self, caller: Caller, salt: str | None, fingerprint: bytes) -> Namespace:
        """Derive the caller's own namespace, for all blocks that are not published."""
        return derive_namespace(self._secret, fingerprint, self._scope(caller, salt))

    def module(
        self, caller: Caller, salt: str | None, fingerprint: bytes, schema: str, digest: str
    ) -> Namespace:
        """Derive the caller's namespace for KV blocks of the content with this `digest`.

        The blocks belong to modules of the caller's schema with the id `schema`.
        """
        scope = self._scope(caller, salt)
        first = self._first_bytes(scope if salt is None else scope[:-2], schema)
        derived = derive_namespace(self._secret, fingerprint, (*scope, "module", digest))
        return Namespace(first + derived[len(first) :])

    def schema(self, caller: Caller, schema: str) -> set[bytes]:
        """Return the first bytes of the namespaces of a schema's blocks, with a salt or without."""
        scopes = self._scope(caller, None), self._scope(caller, "")[:-2]
        return {self._first_bytes(scope, schema) for scope in scopes}

    def _first_bytes(self, scope: tuple[str, ...], schema: str) -> bytes:
        return derive_namespace(self._secret, b"", (*scope, "schema", schema))[:_FIRST_BYTES]

    def published(self, scope: str, fingerprint: bytes) -> Namespace:
        """Derive the namespace of prefixes published for everyone, or for one group."""
        whose = () if scope == EVERYONE else ("group", scope)
        return derive_namespace(self._secret, fingerprint, ("published", *whose))

    def of_tenant(self, tenant_id: str, fingerprint: bytes) -> Namespace:
        """Derive a tenant's own namespace, without a salt and as if it were in no group."""
        scope = ("all",) if self._share_all else ("tenant", tenant_id)
        return derive_namespace(self._secret, fingerprint, scope)

    def of_group(self, group_id: str, fingerprint: bytes) -> Namespace:
        """Derive the namespace that the tenants of a group share."""
        return derive_namespace(self._secret, fingerprint, ("group", group_id))

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
