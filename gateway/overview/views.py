"""The parts of the operator's overview: the engine's flows under their tenants' names."""

import msgspec

from engine.link.stats.flow_stats import EvictionStats
from engine.link.stats.tier_stats import StateStats
from engine.link.view_messages import Overview, OwnerView, QueueUsage, TierUsage
from gateway.overview.health import Health
from gateway.overview.history import Sample
from gateway.state.records import IsolationReport

Names = dict[str, str]


class TenantRef(msgspec.Struct, frozen=True):
    """A tenant by id and name. The name is None if the tenant is gone or its name unavailable."""

    tenant: str
    name: str | None


class OwnerShown(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks that a tenant holds in a tier, and its quota there."""

    tenant: str
    name: str | None
    blocks: int
    floor: int
    ceiling: int


class TierShown(msgspec.Struct, frozen=True, kw_only=True):
    """One tier in blocks. `owners` hold the most blocks. `num_owners` counts all owners."""

    tier: str
    total_blocks: int
    used_blocks: int
    owners: list[OwnerShown]
    num_owners: int


class QueueShown(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's waiting and running sequences in the engine."""

    tenant: str
    name: str | None
    waiting: int
    running: int


class EvictionShown(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks `of` one tenant that were evicted `by` another tenant's need."""

    at: float  # seconds since the epoch
    by: TenantRef
    of: TenantRef
    blocks: int
    tier: str
    reason: str


class OverviewShown(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /admin/overview. Without an engine it has only samples and health."""

    now: float
    interval_s: float
    samples: list[Sample]
    tiers: list[TierShown]
    queue: list[QueueShown]
    evictions: list[EvictionShown]
    states: StateStats | None  # counts of recurrent states; all 0 if no layer is recurrent
    health: list[Health]
    isolation: IsolationReport | None


def ids_in(overview: Overview) -> set[str]:
    """Return the ids of the tenants in an overview."""
    owners = {owner.flow for tier in overview.tiers for owner in tier.owners}
    evicted = {flow for one in overview.evictions for flow in (one.of_flow, one.for_flow)}
    return owners | evicted | {one.flow for one in overview.queue}


def tier_shown(tier: TierUsage, names: Names) -> TierShown:
    """Convert a tier to the operator's view."""
    return TierShown(
        tier=tier.tier,
        total_blocks=tier.total,
        used_blocks=tier.used,
        owners=[_owner(owner, names) for owner in tier.owners],
        num_owners=tier.num_owners,
    )


def queue_shown(one: QueueUsage, names: Names) -> QueueShown:
    """Convert a flow's sequences to the operator's view."""
    name = names.get(one.flow)
    return QueueShown(tenant=one.flow, name=name, waiting=one.waiting, running=one.running)


def eviction_shown(one: EvictionStats, names: Names, now: float) -> EvictionShown:
    """Convert an eviction to the operator's view, at `now` in seconds since the epoch."""
    return EvictionShown(
        at=now - one.age_s,
        by=TenantRef(one.for_flow, names.get(one.for_flow)),
        of=TenantRef(one.of_flow, names.get(one.of_flow)),
        blocks=one.blocks,
        tier=one.tier,
        reason=one.reason,
    )


def _owner(owner: OwnerView, names: Names) -> OwnerShown:
    return OwnerShown(
        tenant=owner.flow,
        name=names.get(owner.flow),
        blocks=owner.blocks,
        floor=owner.floor,
        ceiling=owner.ceiling,
    )
