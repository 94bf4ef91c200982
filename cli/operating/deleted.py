"""The single row of all deleted tenants, which have no names but still have counts."""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

Counts = dict[str, Any]


def folded(tenants: Iterable[Counts]) -> list[Counts]:
    """Fold the deleted tenants of GET /admin/cache/stats into one last entry.

    The entry of a single deleted tenant is unchanged.
    """
    known, deleted = list[Counts](), list[Counts]()
    for tenant in tenants:
        (deleted if tenant["name"] is None else known).append(tenant)
    return [*known, *(deleted if len(deleted) < 2 else [_together(deleted)])]


def name_of(tenant: Counts) -> str:
    """Return the tenant's name as its row shows it."""
    return tenant["name"] or f"{tenant['id']} (deleted)"


def _together(tenants: Sequence[Counts]) -> Counts:
    total: Counts = reduce(_added, tenants)
    prompt_tokens = total["prompt_tokens"]
    rate = total["hit_tokens"] / prompt_tokens if prompt_tokens else None
    return {**total, "name": f"{len(tenants)} deleted tenants", "hit_rate": rate}


def _added(one: Any, other: Any) -> Any:
    """Sum all numbers of the tenants' entries. Names and ids come from the first entry."""
    if isinstance(one, dict) and isinstance(other, dict):
        both = {name: _added(one[name], other[name]) for name in one if name in other}
        return {**other, **one, **both}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    return one
