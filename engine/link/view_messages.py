"""Views for operators: queries whose replies are bounded however much the engine holds.

`StatsReply` lists every flow. These list the largest, so that a page that asks every few seconds
does not hold up the steps. No reply has a token of a prompt, or a hash of any.
"""

from __future__ import annotations

from typing import Generic, Literal

import msgspec
from msgspec import field

from engine.link.query import Query, R, Reply
from engine.link.stats_messages import DiskStats, EvictionStats, TierTokens

SequenceState = Literal["waiting", "loading", "prefill", "decode"]


class View(Query[R], Generic[R], frozen=True, kw_only=True):
    """Base of these queries."""


class OwnerView(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of a flow in a tier, and its quota there, in blocks."""

    flow: str
    blocks: int
    floor: int
    ceiling: int


class TierUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One tier in blocks, and the owners that hold most of it, the first most."""

    tier: str
    total: int
    used: int
    owners: list[OwnerView]
    num_owners: int  # that hold any


class QueueUsage(msgspec.Struct, frozen=True, array_like=True):
    """Sequences of one flow."""

    flow: str
    waiting: int
    running: int  # or loading


class Overview(Reply, frozen=True, kw_only=True, tag="overview"):
    """The answer to one `OverviewQuery`. Counts are since the engine started."""

    engine_id: str
    uptime_s: float
    found: TierTokens
    computed_tokens: int  # of prompts
    generated_tokens: int
    waiting: int
    running: int  # or loading
    loads_chosen: int  # lower blocks that requests found and that were loaded
    loads_refused: int  # computed again instead
    tiers: list[TierUsage] = field(default_factory=list)
    queue: list[QueueUsage] = field(default_factory=list)  # the flows that have most sequences
    # Of one flow's blocks for another, the newest first.
    evictions: list[EvictionStats] = field(default_factory=list)
    disk: DiskStats | None = None


class OverviewQuery(View[Overview], frozen=True, kw_only=True, tag="overview_query"):
    """Ask for the counters, and at most as many owners of each tier, flows and evictions."""

    owners: int = 0
    evictions: int = 0


class SequenceView(msgspec.Struct, frozen=True, array_like=True):
    """One sequence; tokens are counts."""

    request_id: str
    flow: str
    state: SequenceState
    age_s: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class Sequences(Reply, frozen=True, kw_only=True, tag="sequences"):
    """The answer to one `SequencesQuery`; `total` counts all that are alive."""

    total: int
    sequences: list[SequenceView]


class SequencesQuery(View[Sequences], frozen=True, kw_only=True, tag="sequences_query"):
    """Ask for the sequences that are alive, the oldest first."""

    limit: int


PrefixOrder = Literal["hot", "wasteful"]


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree, or a namespace: all that lies in it.

    `node` is a name that this engine made up for it. Blocks are those of the node itself, by the
    fastest tier that has them; of a namespace as the last survey counted them.
    """

    node: str
    parent: str | None  # None: a namespace
    namespace: bytes
    flow: str  # who owns it; of a namespace, who owns its first node
    tokens_before: int
    tokens: int
    device: int
    host: int
    disk: int
    hits: int  # requests that found it
    last_used_s: float  # ago
    children: int
    pins: list[str] = []  # the pinned prefixes that it is a part of


class TreeLevel(Reply, frozen=True, kw_only=True, tag="tree_level"):
    """The answer to one `TreeQuery`. `is_known`: there is such a node; else it has left the tree.

    Of many children those of the most blocks are listed, of very many those of the newest.
    """

    is_known: bool
    node: NodeView | None = None  # None for the root
    children: list[NodeView] = field(default_factory=list)
    more: int = 0  # children that are not listed


class TreeQuery(View[TreeLevel], frozen=True, kw_only=True, tag="tree_query"):
    """Ask for what lies below a node, or with None for the namespaces."""

    node: str | None
    limit: int


class Prefixes(Reply, frozen=True, kw_only=True, tag="prefixes"):
    """The answer to one `PrefixesQuery`, as of the last survey of the tree, or of a part of it."""

    prefixes: list[NodeView]
    surveyed: int  # nodes that it looked at
    nodes: int  # that there are
    age_s: float | None  # since it began; None: the first is under way


class PrefixesQuery(View[Prefixes], frozen=True, kw_only=True, tag="prefixes_query"):
    """Ask for nodes with the most hit tokens, or with the most blocks for each use."""

    order: PrefixOrder
    limit: int


ViewQuery = OverviewQuery | SequencesQuery | TreeQuery | PrefixesQuery
ViewReply = Overview | Sequences | TreeLevel | Prefixes
