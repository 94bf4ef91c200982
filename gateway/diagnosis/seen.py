"""The recent prompts of each tenant, remembered so that the next prompt can be compared.

The memory holds the token ids that the engine was sent, and the names of the tools. Prompts of one
chat share no memory. A conversation of ten turns is stored ten times, if the limits allow this.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from engine.link.messages import Mark
from gateway.config import Bounds
from gateway.tenant_memory import TenantMemory
from prefix_cache.hashing import TokenIds

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class SeenPrompt:
    """A computed prompt, with the tenant group and the salt that decide its namespace."""

    request_id: str
    packed: bytes  # token ids: int32, little endian
    tools: tuple[str, ...]
    has_system: bool
    fingerprint: bytes  # identifies the engine's model
    group_id: str | None
    salt: bytes  # a digest; empty without a salt
    marks: tuple[Mark, ...] = ()
    effort: str | None = None
    # time in seconds, by the clock of `SeenPrompts`, at which the prompt was remembered; 0 until
    # then
    seen_at: float = 0.0

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        names = (*self.tools, self.effort or "", self.group_id or "")
        return len(self.packed) + sum(64 + 4 * len(name) for name in names) + 64 * len(self.marks)

    @property
    def token_ids(self) -> TokenIds:
        """The prompt's token ids."""
        return np.frombuffer(self.packed, "<i4")


def digest_of_salt(salt: str | None) -> bytes:
    """Digest a salt, which may be a secret."""
    if salt is None:
        return b""
    return hashlib.blake2b(salt.encode(), digest_size=_SALT_BYTES).digest()


class SeenPrompts(TenantMemory[SeenPrompt]):
    """A memory of prompts, by tenant and request id."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        super().__init__(
            bounds.max_tenant_seen_bytes, bounds.max_all_seen_bytes, bounds.seen_life_s, clock
        )

    def remember(self, tenant_id: str, seen: SeenPrompt) -> None:
        """Remember a computed prompt."""
        self.add(tenant_id, seen.request_id.encode(), replace(seen, seen_at=self._clock()))

    def age_s(self, seen: SeenPrompt) -> float:
        """Return the seconds since a remembered prompt was computed."""
        return self._clock() - seen.seen_at

    def named(self, tenant_id: str, answer_id: str) -> SeenPrompt | None:
        """Find the prompt of the answer `answer_id`. The answer's id ends with the request's id."""
        request_id = answer_id.rpartition("_")[2].rpartition("-")[2]
        return self.find(tenant_id, request_id.encode())
