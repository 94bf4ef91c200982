"""The remembered verdicts on shapes of a tenant's chats, since a verdict takes a rendering.

Tenants share neither verdicts nor their memory. Otherwise the time of a chat would reveal another
tenant's variables and shapes.

Elsewhere: what a verdict means (`fitted.py`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.tenant_memory import TenantMemory

Judge = Callable[[], bool]
# returns the verdict on a key, which is any value that can be written as JSON
Judged = Callable[[Any, Judge], bool]

# Limits on the bytes of verdicts. A verdict counts as 1024 bytes.
_OF_TENANT = 256 << 10
_OF_ALL = 64 << 20
_LIFE_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Verdict:
    holds: bool
    size: int = 0  # bytes of the entry, without the overhead of every entry


class Verdicts(TenantMemory[_Verdict]):
    """Verdicts on shapes of chats, by tenant and by a digest of the namespace and the shape."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(_OF_TENANT, _OF_ALL, _LIFE_S, clock)

    def of(self, tenant_id: str, namespace: bytes) -> Judged:
        """Return the judge for a tenant's namespace. The judge remembers verdicts for a while."""

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
    """Judge without remembering verdicts."""
    return judge()
