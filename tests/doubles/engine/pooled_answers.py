"""Earlier answers of all namespaces in one pool, which an engine must never have."""

from __future__ import annotations

from engine.drafting.answers import EarlierAnswers
from prefix_cache.namespace import Namespace

ALL = Namespace(b"all".ljust(16))


class PooledAnswers(EarlierAnswers):
    """Drafts for each request from the answers of all: a leak that tests have to find."""

    def scope(self, namespace: Namespace) -> Namespace:
        """Return one scope for all namespaces."""
        del namespace
        return ALL
