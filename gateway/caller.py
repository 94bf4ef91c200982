"""The authenticated caller without its key, for every layer after authentication."""

import msgspec

from engine.link.messages import Priority
from gateway.tenant_adapters import TenantAdapter
from gateway.tenant_limits import CacheQuota, Limits


class Caller(msgspec.Struct, frozen=True):
    """A tenant that one of its API keys has authenticated.

    Most fields are copied from the tenant's record.
    """

    tenant_id: str
    key_id: str
    weight: float = 1.0
    group_id: str | None = None
    priority: Priority = "interactive"
    target_itl_ms: float = 0.0
    limits: Limits = Limits()
    cache: CacheQuota = CacheQuota()
    usage_tiers: bool = False  # whether answers show which tiers held their cached tokens
    canonical_prompts: bool = False
    adapters: tuple[TenantAdapter, ...] = ()
    is_operator: bool = False  # whether the request also has the operator's key

    @property
    def sees_tiers(self) -> bool:
        """True if the answer's usage shows the tiers of cached tokens."""
        return self.usage_tiers or self.is_operator
