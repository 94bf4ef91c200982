"""The views of the tree for operators: children of a node, and the most and least useful nodes.

A query reads at most a few hundred nodes. Counts over the whole tree come from a survey, which
visits all nodes. A small tree is surveyed during the query, a large tree in slices between steps.
Tokens of prompts are never shown.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from engine.link.view_messages import NodeView, Prefixes, PrefixesQuery, TreeLevel, TreeQuery
from engine.queries.node_ids import NodeIds
from engine.sequences.pins import Pins
from prefix_cache.cache import PrefixCache
from prefix_cache.namespace import Namespace
from prefix_cache.tree.node import Node
from prefix_cache.tree.survey import NamespaceUse

SLICE = 128  # number of nodes in a slice, surveyed between two steps
PACE_S = 0.02  # minimum seconds between two slices of a survey
AT_ONCE = 512  # maximum number of nodes that one query may survey immediately
RENEW_S = 10.0  # age of a survey in seconds from which a query starts a new one

PinsOf = Mapping[Node, list[str]]


class TreeViews:
    """The views of one cache. Used by one thread only.

    `clock` is the cache's clock, in monotonic seconds.
    """

    def __init__(
        self, cache: PrefixCache, pins: Pins, engine_id: str, clock: Callable[[], float]
    ) -> None:
        self._cache = cache
        self._pins = pins
        self._ids = NodeIds(engine_id)
        self._clock = clock
        self._due = 0.0

    @property
    def is_surveying(self) -> bool:
        """True if `advance` has nodes to survey."""
        return self._cache.survey.is_under_way

    def advance(self) -> None:
        """Survey the next slice of nodes, if PACE_S seconds have passed since the last slice."""
        if self._cache.survey.is_under_way and self._clock() >= self._due:
            self._cache.survey.advance(SLICE)
            self._due = self._clock() + PACE_S

    def depth(self) -> int:
        """Return the number of nodes on the longest path, according to the last survey."""
        self._look()
        return self._cache.survey.known.depth

    def prefixes(self, query: PrefixesQuery) -> Prefixes:
        """List the nodes with the most or least use, according to the last survey."""
        self._look()
        survey, pins = self._cache.survey, self._pins.by_node()
        known = survey.known
        ordered = known.hot if query.order == "hot" else known.wasteful
        return Prefixes(
            query_id=query.query_id,
            prefixes=[self._node(node, pins) for node in ordered.listed()[: query.limit]],
            surveyed=known.nodes,
            nodes=self._cache.tree.num_nodes,
            age_s=None if survey.last is None else self._clock() - survey.began,
        )

    def level(self, query: TreeQuery) -> TreeLevel:
        """List the children of a node, or all namespaces."""
        if query.node is None:
            self._look()
            return self._namespaces(query)
        found = self._ids.named(query.node)
        if isinstance(found, Node):
            view = self._node(found, self._pins.by_node())
            children = reversed(found.children.values())
            return self._below(query, view, children, len(found.children))
        if found is None or found not in self._cache.tree.tops:
            return TreeLevel(query_id=query.query_id, is_known=False)
        self._look()
        tops = self._cache.tree.tops[found]
        return self._below(query, self._namespace(found), reversed(tops), len(tops))

    def _look(self) -> None:
        survey, now = self._cache.survey, self._clock()
        if self._cache.tree.num_nodes <= AT_ONCE:
            survey.advance(AT_ONCE)
            survey.begin(now)
            survey.advance(AT_ONCE)
        elif now - survey.began > RENEW_S:
            survey.begin(now)

    def _namespaces(self, query: TreeQuery) -> TreeLevel:
        tops, uses = self._cache.tree.tops, self._cache.survey.known.namespaces
        known = ((uses[ns].blocks, ns) for ns in uses if ns in tops)
        largest = [ns for _, ns in heapq.nlargest(query.limit, known)]
        listed = dict.fromkeys([*largest, *islice(tops, query.limit)])
        views = [self._namespace(ns) for ns in islice(listed, query.limit)]
        more = len(tops) - len(views)
        return TreeLevel(query_id=query.query_id, is_known=True, children=views, more=more)

    def _below(
        self, query: TreeQuery, view: NodeView, newest: Iterable[Node], count: int
    ) -> TreeLevel:
        pins = self._pins.by_node()
        largest = heapq.nlargest(query.limit, islice(newest, AT_ONCE), key=_blocks)
        return TreeLevel(
            query_id=query.query_id,
            is_known=True,
            node=view,
            children=[self._node(child, pins) for child in largest],
            more=count - len(largest),
        )

    def _namespace(self, namespace: Namespace) -> NodeView:
        tops = self._cache.tree.tops[namespace]
        use = self._cache.survey.known.namespaces.get(namespace) or NamespaceUse()
        return NodeView(
            node=self._ids.of_namespace(namespace),
            parent=None,
            namespace=namespace,
            flow=next(iter(tops)).owner,
            tokens_before=0,
            tokens=use.blocks * self._cache.block_size,
            device=use.device,
            host=use.host,
            disk=use.disk,
            hits=use.hits,
            last_used_s=self._clock() - use.last_used,
            children=len(tops),
        )

    def _node(self, node: Node, pins: PinsOf) -> NodeView:
        edge, parent, size = node.edge, node.parent, self._cache.block_size
        is_first = parent is None or parent.namespace != node.namespace
        return NodeView(
            node=self._ids.of_node(node),
            parent=self._ids.of_namespace(node.namespace)
            if is_first or parent is None
            else self._ids.of_node(parent),
            namespace=node.namespace,
            flow=node.owner,
            tokens_before=node.start * size,
            tokens=edge.num_blocks * size,
            device=edge.num_device,
            host=edge.num_upper - edge.num_device,
            disk=edge.num_blocks - edge.num_upper,
            hits=node.hits,
            last_used_s=self._clock() - node.last_used,
            children=len(node.children),
            pins=pins.get(node, []),
        )


def _blocks(node: Node) -> int:
    return node.edge.num_blocks
