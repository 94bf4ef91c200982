"""The authenticated caller.

Knows: what every layer behind authentication may know of it. Does not know: keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import Priority
from gateway.cache_quota import CacheQuota
from gateway.limits.limits import Limits


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated tenant, by one of its keys."""

    tenant_id: str
    key_id: str
    weight: float = 1.0
    group_id: str | None = None
    priority: Priority = "interactive"
    limits: Limits = field(default_factory=Limits)
    cache: CacheQuota = field(default_factory=CacheQuota)
    is_operator: bool = False  # the request bears the operator's key beside the tenant's
