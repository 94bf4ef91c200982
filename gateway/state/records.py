"""What is stored of tenants and keys.

Knows: fields. Does not know: where they are stored. Times are seconds since the epoch.
"""

from __future__ import annotations

import secrets

import msgspec

from engine.messages import Priority
from gateway.limits.limits import Limits


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds keys and pays. `id` is made by the gateway, `name` by the operator."""

    id: str
    name: str
    created_at: float
    disabled: bool = False
    weight: float = 1.0
    priority: Priority = "interactive"
    limits: Limits = Limits()

    @classmethod
    def new(cls, name: str, *, created_at: float, weight: float = 1.0) -> Tenant:
        """A tenant with an id that was never given before: its cache can be nobody else's."""
        return cls(id=f"tn_{secrets.token_hex(8)}", name=name, created_at=created_at, weight=weight)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a tenant. The key itself is nowhere: `digest` is its HMAC under the pepper."""

    id: str
    tenant_id: str
    digest: bytes
    hint: str  # first and last characters, for display
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def is_live(self, now: float) -> bool:
        """Whether the key opens anything at `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)
