"""Verdicts on the shapes of a tenant's chats, which take a rendering each to find.

What is kept for one tenant makes no other's chat faster, and takes no other's place: the time of a
chat would tell of its variables and its shape.

Knows: tenants and namespaces. Does not know: what a verdict is about (`fitted.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.tenant_memory import TenantMemory

Judge = Callable[[], bool]
Judged = Callable[[Any, Judge], bool]  # what was judged of a key, which is spelled as JSON

# Bytes, of which a verdict is counted as 1024.
_OF_TENANT = 256 << 10
_OF_ALL = 64 << 20
_LIFE_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Verdict:
    holds: bool
    size: int = 0  # beside what every entry takes


class Verdicts(TenantMemory[_Verdict]):
    """Verdicts by tenant, and by the digest of the namespace and of what was judged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        super().__init__(_OF_TENANT, _OF_ALL, _LIFE_S, clock)

    def of(self, tenant_id: str, namespace: bytes) -> Judged:
        """Judge what was not judged lately for this tenant in this namespace."""

        def judged(key: Any, judge: Judge) -> bool:
            hashed = hashlib.blake2b(namespace, digest_size=32)
            hashed.update(msgspec.json.encode(key))
            known = self.find(tenant_id, hashed.digest())
            if known is None:
                known = _Verdict(judge())
                self.add(tenant_id, hashed.digest(), known)
            else:
                self.use(tenant_id, hashed.digest())
            return known.holds

        return judged


def afresh(_: Any, judge: Judge) -> bool:
    """Judge it each time."""
    return judge()
