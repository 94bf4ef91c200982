"""The views for operators: queries with replies of bounded size.

`StatsReply` lists every flow. Views list only the largest, so a page that asks every few seconds
does not hold up the steps. No reply contains a prompt's token, or a hash of tokens.
"""

from __future__ import annotations

from typing import Generic, Literal

import msgspec
from msgspec import field

from engine.link.query import Query, R, Reply
from engine.link.stats_messages import (
    DiskStats,
    DraftStats,
    EvictionStats,
    GapStats,
    SentinelStats,
    StateStats,
    TierTokens,
)

SequenceState = Literal["waiting", "loading", "prefill", "decode"]


class View(Query[R], Generic[R], frozen=True, kw_only=True):
    """The base of all views."""


class OwnerView(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of a flow in a tier, and its quota there, in blocks."""

    flow: str
    blocks: int
    floor: int
    ceiling: int


class TierUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A tier in blocks, and the flows with the most blocks there, the largest first."""

    tier: str
    total: int
    used: int
    owners: list[OwnerView]
    num_owners: int


class QueueUsage(msgspec.Struct, frozen=True, array_like=True):
    """The sequences of one flow."""

    flow: str
    waiting: int
    running: int  # running or loading


class Overview(Reply, frozen=True, kw_only=True, tag="overview"):
    """The reply to `OverviewQuery`, with counters since the engine started."""

    engine_id: str
    uptime_s: float
    found: TierTokens
    computed_tokens: int
    generated_tokens: int
    waiting: int
    running: int
    loads_chosen: int  # found blocks of lower tiers that were loaded
    loads_refused: int  # found blocks that were computed again instead
    tiers: list[TierUsage] = field(default_factory=list)
    queue: list[QueueUsage] = field(default_factory=list)
    # The evictions of one flow's blocks for another flow, newest first.
    evictions: list[EvictionStats] = field(default_factory=list)
    disk: DiskStats | None = None
    drafts: dict[str, DraftStats] = field(default_factory=dict)
    states: StateStats = StateStats()
    sentinel: SentinelStats = SentinelStats()
    gaps: GapStats = GapStats()


class OverviewQuery(View[Overview], frozen=True, kw_only=True, tag="overview_query"):
    """A query for counters, the last evictions, and up to `owners` flows.

    The flows are listed by tier, and in the queue.
    """

    owners: int = 0
    evictions: int = 0


class SequenceView(msgspec.Struct, frozen=True, array_like=True):
    """A sequence as an operator sees it. Tokens are counts."""

    request_id: str
    flow: str
    state: SequenceState
    age_s: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class Sequences(Reply, frozen=True, kw_only=True, tag="sequences"):
    """The reply to `SequencesQuery`. `total` counts all accepted sequences."""

    total: int
    sequences: list[SequenceView]


class SequencesQuery(View[Sequences], frozen=True, kw_only=True, tag="sequences_query"):
    """A query for the accepted sequences, the oldest first."""

    limit: int


PrefixOrder = Literal["hot", "wasteful"]


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree, or a namespace with all its nodes.

    `node` is this engine's own name of the node. Blocks are the node's own blocks, counted by their
    fastest tier. A namespace has the counts of the last survey.
    """

    node: str
    parent: str | None  # None: a namespace
    namespace: bytes
    flow: str  # owner of the node; for a namespace, the owner of its first node
    tokens_before: int
    tokens: int
    device: int
    host: int
    disk: int
    hits: int  # requests that found the node
    last_used_s: float
    children: int
    pins: list[str] = []


class TreeLevel(Reply, frozen=True, kw_only=True, tag="tree_level"):
    """The reply to `TreeQuery`.

    `is_known` is false if the node has left the tree. If there are many children, only those with
    the most blocks are listed. If there are very many children, only the newest are considered.
    """

    is_known: bool
    node: NodeView | None = None  # None for the root
    children: list[NodeView] = field(default_factory=list)
    more: int = 0  # children that are not listed


class TreeQuery(View[TreeLevel], frozen=True, kw_only=True, tag="tree_query"):
    """A query for the children of a node, or for the namespaces."""

    node: str | None
    limit: int


class Prefixes(Reply, frozen=True, kw_only=True, tag="prefixes"):
    """The reply to `PrefixesQuery`, from the last survey of the tree or a part of the tree."""

    prefixes: list[NodeView]
    surveyed: int  # nodes that the survey has counted
    nodes: int
    age_s: float | None  # seconds since the survey began; None: the first survey runs


class PrefixesQuery(View[Prefixes], frozen=True, kw_only=True, tag="prefixes_query"):
    """A query for nodes with the most hit tokens, or with the most blocks for each use."""

    order: PrefixOrder
    limit: int


ViewQuery = OverviewQuery | SequencesQuery | TreeQuery | PrefixesQuery
ViewReply = Overview | Sequences | TreeLevel | Prefixes
