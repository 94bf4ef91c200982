"""The eviction policies, by the names that flags give them.

A new policy has a line here and its name in `prefix_cache/names.py`, which loads no code.
"""

from __future__ import annotations

from collections.abc import Callable

from prefix_cache.eviction.eviction_policy import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.eviction.expected_value import ExpectedValue
from prefix_cache.names import PolicyName

POLICIES: dict[PolicyName, Callable[[], EvictionPolicy]] = {
    "lru": LeastRecentlyUsed,
    "value": ExpectedValue,
}


def policy_by_name(name: PolicyName) -> EvictionPolicy:
    """Return a fresh policy with its default settings. Raises KeyError for an unknown name."""
    return POLICIES[name]()
