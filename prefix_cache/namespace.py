"""Namespaces: 16 opaque bytes each. Requests in one namespace may share KV blocks.

A namespace is derived from a server secret and a scope. `gateway/sharing/namespaces.py` chooses the
scope, and so decides who shares.
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

    The frame starts with the number of parts, and each part follows its length. So different
    scopes, such as ("org_1", "2345") and ("org_12345", ""), have different frames.
    """
    parts = [fingerprint, *(part.encode() for part in scope)]
    framed = len(parts).to_bytes(4, "big") + b"".join(
        len(part).to_bytes(4, "big") + part for part in parts
    )
    return Namespace(hmac.digest(secret, framed, hashlib.sha256)[:NAMESPACE_BYTES])


def adapted_fingerprint(
    fingerprint: bytes, digest: bytes | None, start: int | None = None
) -> bytes:
    """Return the fingerprint of blocks computed with an adapter, or the model's fingerprint.

    An adapter's fingerprint is the SHA-256 of a name, the model's fingerprint and the adapter's
    digest, each after its length. So each adapter has its own namespaces. `start` is the position
    from which an activated adapter computes. `start` is hashed too, because the same tokens may
    come before it in one prompt and after it in another.
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

    `spans` holds (first block, namespace). The first span starts at block 0, and starts increase.
    The last span has no end. A private prompt has one span.

    From position `switch` on, tokens are computed differently, for example with an adapter. So from
    `switch` on, no block of the next to last namespace is read. None means no switch.
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
        """Return the path of a prompt whose blocks are all in one namespace."""
        return cls(((0, namespace),))

    def until(self, block: int, namespace: Namespace) -> NamespacePath:
        """Return this path up to `block`, with `namespace` from there on."""
        kept = tuple(span for span in self.spans if span[0] < block)
        return NamespacePath((*kept, (block, namespace)), self.switch)

    @property
    def last(self) -> Namespace:
        """The namespace of the last span, to which all later blocks belong."""
        return self.spans[-1][1]

    def at(self, block: int) -> Namespace:
        """Return the namespace of block number `block`."""
        for start, namespace in reversed(self.spans):
            if start <= block:
                return namespace
        raise ValueError(f"no block {block}")

    def span_at(self, block: int) -> tuple[Namespace, int | None]:
        """Return the namespace of block `block`, and the first later block of another namespace."""
        if len(self.spans) == 1:
            return self.spans[0][1], None
        here = self.at(block)
        return here, next((at for at, ns in self.spans if at > block and ns != here), None)
