"""A check that recomputes the cache's incremental counts and reports differences.

Costs a walk over the tree and the leases: for tests after every operation, and for an idle
engine. Reads everything, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.quota_usage import QuotaUsage
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.lease_states import LeaseStates
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.checkpoints import Checkpoints
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.tier_pools import BlockAllocator
from prefix_cache.tiers.tier_states import TierStates
from prefix_cache.tree.node import Checkpoint, Node
from prefix_cache.tree.residency import BIT, DEVICE, HOST, IN_FLIGHT, MOVING, is_legal
from prefix_cache.tree.tree import RadixTree
from storage.move import DEVICE_TIER, Tier


def check(
    tree: RadixTree,
    ref_counts: RefCounts,
    capacity: Capacity,
    in_flight: InFlight,
    leases: Iterable[Lease],
) -> None:
    """Raise InvariantBroken at the first inconsistency."""
    leases = list(leases)
    attached = list(tree.nodes())
    detached = _detached(leases, in_flight)
    for node in (tree.root, *attached, *detached):
        _check_node(tree, node)
    for lease in leases:
        _check_lease(lease)
    _expect("node count", tree.num_nodes, len(attached))
    _check_tops(tree, attached)
    _check_owned(tree, attached)
    _check_ref_counts([tree.root, *attached], detached, leases)
    _check_candidates(tree, ref_counts, attached)
    for tier, allocator in capacity.allocators.items():
        _check_slots(tier, allocator, [*attached, *detached], leases)
    _check_transfers([*attached, *detached], in_flight)
    _check_quota_usages(capacity.quota_usages, [*attached, *detached], leases, in_flight)
    log = capacity.removals.eviction_log
    _expect("evictions caused and suffered", log.caused.total(), log.suffered.total())


def check_states(
    tree: RadixTree, checkpoints: Checkpoints, leases: Iterable[Lease], in_flight: InFlight
) -> None:
    """Raise InvariantBroken where a state slot is in two places or lost, or a count is wrong."""
    leases = list(leases)
    nodes = [*tree.nodes(), *_detached(leases, in_flight)]
    kept = {node: node.checkpoint for node in nodes if node.checkpoint is not None}
    owned = [slot for lease in leases if lease.states is not None for slot in lease.states.owned]
    holders = [lease.owner for lease in leases if lease.states is not None and lease.states.holds]
    for at in checkpoints.tiers.values():
        is_device = at is checkpoints.device
        _check_tier_states(at, kept, owned if is_device else [], holders if is_device else [])
    readers: Counter[Node] = Counter()
    for lease in leases:
        if lease.states is not None:
            readers.update(lease.states.read.values())
            if not lease.failed:
                _check_lease_states(lease, lease.states)
    for node, checkpoint in kept.items():
        _expect("readers of a checkpoint", checkpoint.readers, readers[node])
        _expect("a checkpoint of nothing", not (checkpoint.copies or checkpoint.coming), False)
        coming = {one for one in node.transfers if one.of_state}
        _expect("states being copied", set(checkpoint.coming.values()), coming)


def _check_tier_states(
    at: TierStates, kept: Mapping[Node, Checkpoint], owned: list[int], holders: list[str]
) -> None:
    """Check one tier's state slots, the owners charged for them, and the candidates."""
    here = {node: one.copies[at.tier].slot for node, one in kept.items() if at.tier in one.copies}
    coming = {n: one.coming[at.tier] for n, one in kept.items() if at.tier in one.coming}
    filled = [transfer.moves[0].target for transfer in coming.values()]
    everywhere = sorted([*at.allocator.free_ids().tolist(), *owned, *here.values(), *filled])
    first = at.allocator.total - at.usage.total
    _expect("state slots", everywhere, list(range(first, at.allocator.total)))
    _expect("number of checkpoints", (at.num_kept, at.num_coming), (len(here), len(coming)))
    charged = Counter([*(node.owner for node in [*here, *coming]), *holders])
    _expect("slots held of owners' parts", at.num_held, len(holders))
    for owner in {*charged, *at.usage.held}:
        _expect("checkpoints of an owner", at.usage.held.get(owner, 0), charged[owner])
    is_device = at.tier is DEVICE_TIER
    in_use = {n for n in here if kept[n].coming or (is_device and kept[n].readers)}
    free = {node for node in here if node.attached and node not in in_use}
    _expect("checkpoints that may go", set(at.candidates), free)
    _expect("checkpoints with an outdated key", at.candidates.outdated(), [])


def _check_lease_states(lease: Lease, states: LeaseStates) -> None:
    """Check that the states a lease reads exist, and that each version has its own slot."""
    read = {
        slot: node.checkpoint and node.checkpoint.device_slot for slot, node in states.read.items()
    }
    _expect("checkpoints that are read", read, {slot: slot for slot in read})
    for one in (states.at, states.before):
        is_there = one.slot in (0, *states.read) or one.slot in states.owned
        _expect("a state that may be read is there", is_there, True)
    kept = [*states.coming, *([] if states.kept is None else [states.kept])]
    versions = [one if states.in_place else one.slot for one in kept]
    _expect("versions of a state", len(set(versions)), len(versions))
    _expect("versions that a lease owns", {one.slot for one in kept} <= set(states.owned), True)
    if states.in_place:
        late = [one for one in kept if one.slot == states.at.slot]
        reach = states.at.position - 2 * states.block_size
        _expect("positions of a ring that are whole", [one for one in late if one[0] < reach], [])
    _expect("slots of a lease", len(set(states.owned)), len(states.owned))
    beside = set(states.read.values()).difference(lease.node.way_up())
    _expect("checkpoints read beside the lease's path", beside, set())


def _expect(what: str, kept: object, recomputed: object) -> None:
    if kept != recomputed:
        raise InvariantBroken(f"{what}: kept {kept}, recomputed {recomputed}")


def _check_tops(tree: RadixTree, attached: Iterable[Node]) -> None:
    tops: dict[bytes, set[Node]] = {}
    for node in attached:
        if node.parent is not None and node.parent.namespace != node.namespace:
            tops.setdefault(node.namespace, set()).add(node)
    _expect("first nodes by namespace", {ns: set(some) for ns, some in tree.tops.items()}, tops)


def _check_owned(tree: RadixTree, attached: Iterable[Node]) -> None:
    owned: dict[str, set[Node]] = {}
    for node in attached:
        owned.setdefault(node.owner, set()).add(node)
    _expect("nodes by owner", {owner: set(some) for owner, some in tree.owned.items()}, owned)


def _detached(leases: list[Lease], in_flight: InFlight) -> list[Node]:
    """Return the detached nodes: unreachable by walks, but kept alive by a lease or a copy."""
    found: dict[Node, None] = {}
    for lease in leases:
        node: Node | None = lease.node
        while node is not None and not node.attached:
            found[node] = None
            node = node.parent
    flying = [node for transfer in in_flight.transfers() for node in transfer.nodes]
    found.update((node, None) for node in flying if not node.attached)
    return list(found)


def _check_node(tree: RadixTree, node: Node) -> None:
    edge, blocks = node.edge, len(node.edge)
    _expect("edge is empty", blocks == 0, node is tree.root)
    lengths = (blocks * tree.block_size, blocks * KEY_BYTES)
    _expect("tokens and keys of an edge", (len(edge.tokens), len(edge.keys)), lengths)
    _check_residency(node)
    below = (node, node.end, node.attached)
    for child in node.children.values():
        found = node.children.get(child.namespace + child.edge.first_block())
        _expect("child by its first block", found, child)
        _expect("parent, start, attachment", (child.parent, child.start, child.attached), below)


def _check_residency(node: Node) -> None:
    """Check residency: states are legal, tiers get no faster along a path, counts are right."""
    states = node.edge.states
    _expect("illegal states", [int(state) for state in states if not is_legal(int(state))], [])
    tiers = np.where(states & DEVICE, 0, np.where(states & HOST, 1, 2))
    _expect("tiers along an edge", tiers.tolist(), sorted(tiers.tolist()))
    counts = (int((tiers == 0).sum()), int((tiers < 2).sum()))
    _expect("blocks by tier", (node.edge.num_device, node.edge.num_upper), counts)
    on_top = [
        (child.edge.num_device > 0, child.edge.num_upper > 0) for child in node.children.values()
    ]
    _expect(
        "what children told", [child.counted_in_parent for child in node.children.values()], on_top
    )
    sums = (sum(device for device, _ in on_top), sum(upper for _, upper in on_top))
    _expect("children by tier", (node.device_children, node.upper_children), sums)
    if sums[0]:
        _expect("a node on the device below one that is not", node.edge.is_on_device, True)
    if sums[1]:
        _expect("a node in the host below one on disk", node.edge.num_upper, len(node.edge))


def _check_lease(lease: Lease) -> None:
    _expect("a live lease is released", lease.released, False)
    _expect("where a lease's node ends", lease.num_shared, lease.node.end)
    _expect("shared blocks within a lease", 0 <= lease.num_shared <= lease.num_blocks, True)
    own = [False] * lease.num_shared
    for start, end in lease.duplicates:
        own[start:end] = [True] * (end - start)
    node, block_ids = lease.node, np.zeros(lease.num_shared, dtype=np.int32)
    ready = True
    while node.parent is not None:
        _expect("namespace of an edge", node.namespace, lease.path.at(node.start))
        block_ids[node.start : node.end] = node.edge.block_ids
        ready = ready and (node.edge.is_on_device or _is_released(node))
        node = node.parent
    if lease.states is not None:
        ready = ready and all(DEVICE_TIER in _copies(one) for one in lease.states.read.values())
    if lease.failed:
        return  # its device slots may already belong to other blocks
    _expect("whether a lease is ready", lease.ready, ready)
    differs = lease.block_ids[: lease.num_shared] != block_ids
    _expect("blocks of a lease that are not the tree's", differs.tolist(), own)
    _expect("the top of a lease's way", node.attached, True)


def _copies(node: Node) -> Iterable[Tier]:
    return () if node.checkpoint is None else node.checkpoint.copies


def _is_released(node: Node) -> bool:
    """Return whether all loads of the node's blocks are released early, so that steps may read."""
    up = [one for one in node.transfers if one.target is DEVICE_TIER and not one.of_state]
    return bool(up) and all(one.is_released for one in up)


def _check_ref_counts(attached: list[Node], detached: list[Node], leases: list[Lease]) -> None:
    counts = Counter(lease.node for lease in leases)
    held = Counter(node.parent for node in (*attached, *detached) if node.is_held)
    for node in (*attached, *detached):
        _expect("leases on a node", node.leases, counts[node])
        _expect("held children", node.held_children, held[node])
    for node in detached:
        _expect("a detached node is held or copied", node.is_held or bool(node.transfers), True)
        _expect(
            "its children are held", all(child.is_held for child in node.children.values()), True
        )


def _check_candidates(tree: RadixTree, ref_counts: RefCounts, attached: list[Node]) -> None:
    free = [node for node in attached if not node.is_held]
    for tier, candidates in ref_counts.leaves.items():
        leaves = {node for node in free if tier in node.tails() and not node.transfers}
        _expect("candidates", set(candidates), leaves)
        _expect("number of candidates", len(candidates), len(leaves))
        _expect("candidates with an outdated key", candidates.outdated(), [])
        _expect("candidates that would never come up", candidates.num_unreachable(), 0)
    evictable = sum(node.edge.num_device for node in free)
    _expect("evictable blocks", ref_counts.evictable_blocks, evictable)
    _expect("the root is attached", tree.root.attached and tree.root.parent is None, True)


def _check_slots(
    tier: Tier, allocator: BlockAllocator, nodes: list[Node], leases: list[Lease]
) -> None:
    """Check that each slot is in exactly one place: free, in a node, or private to a lease."""
    places = [allocator.free_ids(), *(node.edge.held_slots_in(tier) for node in nodes)]
    if tier is DEVICE_TIER:
        places += [lease.own_blocks() for lease in leases]
    everywhere = np.sort(np.concatenate(places))
    _expect(f"slots of {tier.value}", everywhere.tolist(), list(range(allocator.total)))


def _check_transfers(nodes: list[Node], in_flight: InFlight) -> None:
    """Check that each block being copied has its transfer, and that no other block has one."""
    transfers = [transfer for node in nodes for transfer in node.transfers]
    _expect("transfers", set(transfers), set(in_flight.transfers()))
    moving: dict[Node, list[int]] = {node: [] for node in nodes}
    for transfer in set(transfers):
        for node, start, end in transfer.parts():
            _expect("a transfer among its node's", transfer in node.transfers, True)
            moving[node] += range(start, end)
            ways = node.edge.states[start:end] & MOVING
            wanted = set() if transfer.of_state else {IN_FLIGHT * BIT[transfer.target]}
            _expect("where a transfer goes", set(ways.tolist()), wanted)
    for node, places in moving.items():
        _expect("moving", sorted(places), np.flatnonzero(node.edge.states & MOVING).tolist())
    for move, transfer, position in in_flight.open_moves():
        if transfer.of_state:
            continue  # `check_states`
        node = transfer.node_at(position)
        froms = node.edge.slots(move.source_tier)[position - node.start]
        to = node.edge.slots(move.target_tier)[position - node.start]
        _expect("the slots of a move", (move.source, move.target), (froms, to))
        read = int(node.edge.states[position - node.start]) & BIT[move.source_tier]
        _expect("what is being copied is there", bool(read), True)
    opened = Counter(transfer for _, transfer, _ in in_flight.open_moves())
    for transfer in set(transfers):
        _expect("open copies of a transfer", transfer.open, opened[transfer])
    for tier in Tier:
        leaving = sum(f.open for f in opened if f.makes_room and f.source is tier)
        arriving = sum(f.open for f in opened if f.target is tier)
        _expect("leaving", (in_flight.leaving[tier], in_flight.arriving[tier]), (leaving, arriving))


def _check_quota_usages(
    quota_usages: Mapping[Tier, QuotaUsage],
    nodes: list[Node],
    leases: list[Lease],
    in_flight: InFlight,
) -> None:
    """Check each owner's counts of blocks in each tier, held and leaving."""
    leaving: Counter[tuple[Tier, str]] = Counter()
    for transfer in in_flight.transfers():
        if transfer.makes_room:
            leaving[transfer.source, transfer.nodes[0].owner] += transfer.end - transfer.start
    for tier, quota_usage in quota_usages.items():
        held: Counter[str] = Counter()
        for node in nodes:
            held[node.owner] += len(node.edge.held_slots_in(tier))
        if tier is DEVICE_TIER:
            for lease in leases:
                held[lease.owner] += len(lease.own_blocks())
        for owner in {*held, *quota_usage.held}:
            _expect(f"held in {tier.value}", quota_usage.held.get(owner, 0), held[owner])
            stays = quota_usage.held.get(owner, 0) - leaving[tier, owner]
            _expect(f"what stays in {tier.value}", quota_usage.level(owner), stays)
