"""Drafts from the earlier answers of all namespaces, a leak that no engine may have."""

from __future__ import annotations

from engine.drafting.answers import EarlierAnswers
from prefix_cache.namespace import Namespace

ALL = Namespace(b"all".ljust(16))


class PooledAnswers(EarlierAnswers):
    """Drafting from all tenants' earlier answers: a leak that tests must find."""

    def scope(self, namespace: Namespace) -> Namespace:
        """Return one scope for all namespaces."""
        del namespace
        return ALL
