"""The answers of one engine to all queries about its cache. Commands are answered at their end.

Elsewhere: the running requests (`core`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from engine.components import Components
from engine.link.query_messages import (
    ListMarked,
    Probe,
    ReplyMessage,
    StatsQuery,
    StatsReply,
)
from engine.link.stats.engine_stats import EngineStats
from engine.link.view_messages import View
from engine.queries.cache_orders import CacheOrders
from engine.queries.prefix_queries import PrefixQueries
from engine.queries.prunings import Prunings
from engine.queries.report import report
from engine.queries.tree_views import TreeViews
from engine.queries.views import view
from engine.sequences.sequence import Sequence

Answered = Probe | ListMarked | StatsQuery | View[Any]


class Queries:
    """The dispatch of queries to their handlers. Used by one thread only."""

    def __init__(self, components: Components) -> None:
        cache, clock = components.cache, components.clock
        self._components = components
        self._clock = clock
        self._prefixes = PrefixQueries(cache, components.times)
        self.prunings = Prunings(clock)
        self.orders = CacheOrders(components, self.prunings)
        self.tree_views = TreeViews(cache, components.pins, components.welcome.engine_id, clock)

    def answer(self, query: Answered, alive: Collection[Sequence]) -> ReplyMessage:
        """Answer one query. `alive` are all accepted sequences, the oldest first."""
        match query:
            case Probe() | ListMarked():
                return self._prefixes.answer(query, self._clock())
            case StatsQuery():
                return StatsReply(query_id=query.query_id, stats=self.stats(query.evictions))
            case View():
                return view(self._components, self.tree_views, query, alive)

    def stats(self, evictions: int = 0) -> EngineStats:
        """Return all counters, and at most the last `evictions` evictions between flows."""
        return report(self._components, self.tree_views.depth(), evictions)
