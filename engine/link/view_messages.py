"""The views for operators: queries whose replies have a bounded size.

`StatsReply` lists every flow. Views list only the largest flows, so that a page that sends queries
every few seconds does not delay steps. No reply contains tokens of a prompt, or hashes of tokens.
"""

from __future__ import annotations

from typing import Generic, Literal

import msgspec
from msgspec import field

from engine.link.query import Query, R, Reply
from engine.link.stats.engine_stats import DraftStats, SentinelStats
from engine.link.stats.flow_stats import EvictionStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import DiskStats, StateStats, TierTokens

SequenceState = Literal["waiting", "loading", "prefill", "decode"]


class View(Query[R], Generic[R], frozen=True, kw_only=True):
    """The base class of all views."""


class OwnerView(msgspec.Struct, frozen=True, array_like=True):
    """A flow's blocks in one tier, and its quota in that tier, in blocks."""

    flow: str
    blocks: int
    floor: int
    ceiling: int


class TierUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a tier, in blocks, and the flows with the most blocks in it, largest first."""

    tier: str
    total: int
    used: int
    owners: list[OwnerView]
    num_owners: int


class QueueUsage(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of one flow's sequences."""

    flow: str
    waiting: int
    running: int  # number of running or loading sequences


class Overview(Reply, frozen=True, kw_only=True, tag="overview"):
    """The reply to `OverviewQuery`, with counters since the engine started."""

    engine_id: str
    uptime_s: float
    found: TierTokens
    computed_tokens: int
    generated_tokens: int
    waiting: int
    running: int
    loads_chosen: int  # blocks that were found in lower tiers and loaded
    loads_refused: int  # blocks that were found in lower tiers but computed again
    tiers: list[TierUsage] = field(default_factory=list)
    queue: list[QueueUsage] = field(default_factory=list)
    # The evictions of a flow's blocks for another flow, newest first.
    evictions: list[EvictionStats] = field(default_factory=list)
    disk: DiskStats | None = None
    drafts: dict[str, DraftStats] = field(default_factory=dict)
    states: StateStats = StateStats()
    sentinel: SentinelStats = SentinelStats()
    gaps: GapStats = GapStats()


class OverviewQuery(View[Overview], frozen=True, kw_only=True, tag="overview_query"):
    """A query for counters, the last evictions, and up to `owners` flows.

    Flows are listed for each tier and for the queue.
    """

    owners: int = 0
    evictions: int = 0


class SequenceView(msgspec.Struct, frozen=True, array_like=True):
    """A sequence as shown to operators. Only numbers of tokens are shown."""

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
    """A node of the tree, or a namespace as the sum of its nodes.

    `node` is a name that only this engine uses. Blocks count for their fastest tier, without the
    blocks of child nodes. The counts of a namespace are from the last survey.
    """

    node: str
    parent: str | None  # None for a namespace
    namespace: bytes
    flow: str  # owner of the node, or of a namespace's first node
    tokens_before: int
    tokens: int
    device: int
    host: int
    disk: int
    hits: int  # number of requests that found the node
    last_used_s: float
    children: int
    pins: list[str] = []


class TreeLevel(Reply, frozen=True, kw_only=True, tag="tree_level"):
    """The reply to `TreeQuery`.

    `is_known` is false if the node is no longer in the tree. If there are many children, only those
    with the most blocks are listed. If there are very many, only the newest children are
    considered.
    """

    is_known: bool
    node: NodeView | None = None  # None for the root
    children: list[NodeView] = field(default_factory=list)
    more: int = 0  # number of children that are not listed


class TreeQuery(View[TreeLevel], frozen=True, kw_only=True, tag="tree_query"):
    """A query for the children of a node, or for all namespaces."""

    node: str | None
    limit: int


class Prefixes(Reply, frozen=True, kw_only=True, tag="prefixes"):
    """The reply to `PrefixesQuery`, from the last survey of the tree, or of a part of the tree."""

    prefixes: list[NodeView]
    surveyed: int  # number of nodes that the survey has visited
    nodes: int
    age_s: float | None  # seconds since the survey began; None: the first survey is still running


class PrefixesQuery(View[Prefixes], frozen=True, kw_only=True, tag="prefixes_query"):
    """A query for the nodes with the most hit tokens, or with the most blocks per use."""

    order: PrefixOrder
    limit: int


ViewQuery = OverviewQuery | SequencesQuery | TreeQuery | PrefixesQuery
ViewReply = Overview | Sequences | TreeLevel | Prefixes
