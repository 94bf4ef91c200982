"""The joined views of several engines for operators and tenants.

Joined lists have the maximum length of each engine's list. An entry that no engine lists is
missing, even if it is large in all engines together.
"""

from collections.abc import Mapping
from heapq import nlargest
from itertools import chain

from msgspec.structs import replace

from engine.link.query_messages import MarkedPrefixes
from engine.link.stats.engine_stats import SentinelStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import TierTokens
from engine.link.view_messages import (
    NodeView,
    Overview,
    OwnerView,
    Prefixes,
    PrefixOrder,
    QueueUsage,
    Sequences,
    TierUsage,
    TreeLevel,
)
from gateway.replicas.joined_stats import joined_disk, joined_states
from gateway.replicas.sums import merged, summed


class JoinedOverview(Overview, frozen=True, kw_only=True, tag="joined_overview"):
    """The joined overview, and each replica's own overview by its name."""

    replicas: dict[str, Overview]


def each_overview(overview: Overview) -> dict[str, Overview]:
    """Return each answering replica's overview, or {} for a single engine."""
    return overview.replicas if isinstance(overview, JoinedOverview) else {}


def joined_overview(found: Mapping[str, Overview], owners: int, evictions: int) -> JoinedOverview:
    """Join overviews, with at most `owners` owners and flows and `evictions` evictions."""
    parts = list(found.values())
    counts = {name: sum(getattr(part, name) for part in parts) for name in _COUNTS}
    tiers = merged(({tier.tier: tier for tier in part.tiers} for part in parts), _tier)
    queue = merged(({one.flow: one for one in part.queue} for part in parts), _queue)
    evicted = sorted(chain(*(part.evictions for part in parts)), key=lambda one: one.age_s)
    return JoinedOverview(
        query_id="",
        engine_id="+".join(part.engine_id for part in parts),
        uptime_s=max(part.uptime_s for part in parts),
        found=sum((part.found for part in parts), TierTokens()),
        tiers=[replace(t, owners=nlargest(owners, t.owners, _blocks)) for t in tiers.values()],
        queue=nlargest(owners, queue.values(), key=lambda one: one.waiting + one.running),
        evictions=evicted[:evictions],
        disk=joined_disk(part.disk for part in parts),
        drafts=merged((part.drafts for part in parts), summed),
        states=joined_states([part.states for part in parts]),
        sentinel=sum((part.sentinel for part in parts), SentinelStats()),
        gaps=sum((part.gaps for part in parts), GapStats()),
        replicas=dict(found),
        **counts,
    )


_COUNTS = (
    "computed_tokens",
    "generated_tokens",
    "waiting",
    "running",
    "loads_chosen",
    "loads_refused",
)


def joined_sequences(found: Mapping[str, Sequences], limit: int) -> Sequences:
    """Join the oldest `limit` of the replicas' sequences."""
    every = chain(*(one.sequences for one in found.values()))
    return Sequences(
        query_id="",
        total=sum(one.total for one in found.values()),
        sequences=nlargest(limit, every, key=lambda one: one.age_s),
    )


def joined_prefixes(found: Mapping[str, Prefixes], order: PrefixOrder, limit: int) -> Prefixes:
    """Join the replicas' prefixes in the engines' order; return the first `limit`.

    `prefix_cache.tree.survey` has the order.
    """
    every = chain(*(one.prefixes for one in found.values()))
    ages = [one.age_s for one in found.values()]
    known = [age for age in ages if age is not None]
    return Prefixes(
        query_id="",
        prefixes=nlargest(limit, every, key=_hit_tokens if order == "hot" else _waste),
        surveyed=sum(one.surveyed for one in found.values()),
        nodes=sum(one.nodes for one in found.values()),
        age_s=max(known) if len(known) == len(ages) else None,
    )


def joined_roots(found: Mapping[str, TreeLevel], limit: int) -> TreeLevel:
    """Join the replicas' namespaces. A namespace in several replicas is listed for each."""
    every = list(chain(*(level.children for level in found.values())))
    listed = nlargest(limit, every, key=_node_blocks)
    more = sum(level.more for level in found.values()) + len(every) - len(listed)
    return TreeLevel(query_id="", is_known=True, children=listed, more=more)


def joined_marks(found: Mapping[str, MarkedPrefixes]) -> MarkedPrefixes:
    """Join the marked prefixes, the most recently used first.

    Each prefix comes from the replica that has most of its tokens.
    """
    best = merged(
        ({one.prefix_id: one for one in reply.prefixes} for reply in found.values()),
        lambda same: max(same, key=lambda one: (one.tiers.total, one.left)),
    )
    return MarkedPrefixes(
        query_id="", prefixes=sorted(best.values(), key=lambda one: one.seconds - one.left)
    )


def _tier(same: list[TierUsage]) -> TierUsage:
    owners = merged(({one.flow: one for one in tier.owners} for tier in same), _owner)
    return TierUsage(
        tier=same[0].tier,
        total=sum(tier.total for tier in same),
        used=sum(tier.used for tier in same),
        owners=list(owners.values()),
        num_owners=max(len(owners), *(tier.num_owners for tier in same)),
    )


def _owner(same: list[OwnerView]) -> OwnerView:
    return summed(same, flow=same[0].flow)


def _queue(same: list[QueueUsage]) -> QueueUsage:
    return summed(same, flow=same[0].flow)


def _blocks(owner: OwnerView) -> int:
    return owner.blocks


def _node_blocks(node: NodeView) -> int:
    return node.device + node.host + node.disk


def _hit_tokens(node: NodeView) -> int:
    return node.hits * node.tokens


def _waste(node: NodeView) -> float:
    return _node_blocks(node) / (1 + node.hits)
