"""A namespace, whose requests may share blocks, as 16 opaque bytes.

Knows: how a namespace is derived from a server secret and a scope, and how a prompt's
path runs through several namespaces. Does not know: what a tenant or a group is; who shares with
whom is decided in `gateway/sharing/namespaces.py`, which names the scope.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NewType

Namespace = NewType("Namespace", bytes)

NAMESPACE_BYTES = 16


def derive_namespace(secret: bytes, fingerprint: bytes, scope: tuple[str, ...]) -> Namespace:
    """Derive HMAC-SHA256(secret, framed(fingerprint, *scope)), cut to 16 bytes.

    Each part is preceded by its length, and the number of parts comes first, so no two
    scopes frame to the same bytes: ("org_1", "2345") and ("org_12345", "") differ.
    """
    parts = [fingerprint, *(part.encode() for part in scope)]
    framed = len(parts).to_bytes(4, "big") + b"".join(
        len(part).to_bytes(4, "big") + part for part in parts
    )
    return Namespace(hmac.digest(secret, framed, hashlib.sha256)[:NAMESPACE_BYTES])


def adapted_fingerprint(
    fingerprint: bytes, digest: bytes | None, start: int | None = None
) -> bytes:
    """Return the fingerprint of blocks computed with an adapter; no `digest`: the model's own.

    SHA-256 of its name, the model's fingerprint and the adapter's digest, each after its length:
    everything on which a block's bits depend. So each adapter has namespaces of its own. `start`:
    the position from which an activated adapter computes; the same tokens may be before it in one
    prompt and after it in another.
    """
    if digest is None:
        return fingerprint
    parts: tuple[bytes, ...] = (b"adapter", fingerprint, digest)
    if start is not None:
        parts = (b"activated adapter", fingerprint, digest, start.to_bytes(4, "big"))
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.sha256(framed).digest()


@dataclass(frozen=True, slots=True)
class NamespacePath:
    """The namespaces of a prompt's blocks, in order from position 0.

    `spans` holds (first block, namespace); the first span starts at block 0, starts rise,
    and the last span runs on without end. A private prompt has one span.

    `switch`: position from which the last namespace's tokens are computed with something else, such
    as an adapter, than those of the namespace before it. From there on, no block of the namespace
    before is read. None: no switch.
    """

    spans: tuple[tuple[int, Namespace], ...]
    switch: int | None = None

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.spans]
        if not starts or starts[0] != 0 or sorted(set(starts)) != starts:
            raise ValueError("spans must start at block 0 and rise")
        if any(len(namespace) != NAMESPACE_BYTES for _, namespace in self.spans):
            raise ValueError(f"a namespace is {NAMESPACE_BYTES} bytes")

    @classmethod
    def single(cls, namespace: Namespace) -> NamespacePath:
        """Return the path of a prompt whose blocks all live in one namespace."""
        return cls(((0, namespace),))

    def until(self, block: int, namespace: Namespace) -> NamespacePath:
        """Return this path before block number `block`, and `namespace` from there on."""
        kept = tuple(span for span in self.spans if span[0] < block)
        return NamespacePath((*kept, (block, namespace)), self.switch)

    @property
    def last(self) -> Namespace:
        """The namespace of all later blocks."""
        return self.spans[-1][1]

    def at(self, block: int) -> Namespace:
        """Return the namespace of block number `block`."""
        for start, namespace in reversed(self.spans):
            if start <= block:
                return namespace
        raise ValueError(f"no block {block}")

    def span_at(self, block: int) -> tuple[Namespace, int | None]:
        """Return the namespace of block `block`, and the first later block in another namespace."""
        if len(self.spans) == 1:
            return self.spans[0][1], None
        here = self.at(block)
        return here, next((at for at, ns in self.spans if at > block and ns != here), None)
