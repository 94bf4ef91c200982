"""The check of the tree's nodes, slots, candidates for eviction, copies and quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from prefix_cache.eviction.quota_usage import QuotaUsage
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.invariants.expected import detached_nodes, expect
from prefix_cache.invariants.leases import check_lease, check_ref_counts
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.tier_pools import BlockAllocator
from prefix_cache.tree.node import Node
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
    detached = detached_nodes(leases, in_flight)
    for node in (tree.root, *attached, *detached):
        _check_node(tree, node)
    for lease in leases:
        check_lease(lease)
    expect("node count", tree.num_nodes, len(attached))
    _check_tops(tree, attached)
    _check_owned(tree, attached)
    check_ref_counts([tree.root, *attached], detached, leases)
    _check_candidates(tree, ref_counts, attached)
    for tier, allocator in capacity.allocators.items():
        _check_slots(tier, allocator, [*attached, *detached], leases)
    _check_transfers([*attached, *detached], in_flight)
    _check_quota_usages(capacity.quota_usages, [*attached, *detached], leases, in_flight)
    log = capacity.removals.eviction_log
    expect("evictions caused and suffered", log.caused.total(), log.suffered.total())


def _check_tops(tree: RadixTree, attached: Iterable[Node]) -> None:
    tops: dict[bytes, set[Node]] = {}
    for node in attached:
        if node.parent is not None and node.parent.namespace != node.namespace:
            tops.setdefault(node.namespace, set()).add(node)
    expect("first nodes by namespace", {ns: set(some) for ns, some in tree.tops.items()}, tops)


def _check_owned(tree: RadixTree, attached: Iterable[Node]) -> None:
    owned: dict[str, set[Node]] = {}
    for node in attached:
        owned.setdefault(node.owner, set()).add(node)
    expect("nodes by owner", {owner: set(some) for owner, some in tree.owned.items()}, owned)


def _check_node(tree: RadixTree, node: Node) -> None:
    edge, blocks = node.edge, len(node.edge)
    expect("edge is empty", blocks == 0, node is tree.root)
    lengths = (blocks * tree.block_size, blocks * KEY_BYTES)
    expect("tokens and keys of an edge", (len(edge.tokens), len(edge.keys)), lengths)
    _check_residency(node)
    below = (node, node.end, node.attached)
    for child in node.children.values():
        found = node.children.get(child.namespace + child.edge.first_block())
        expect("child by its first block", found, child)
        expect("parent, start, attachment", (child.parent, child.start, child.attached), below)


def _check_residency(node: Node) -> None:
    states: list[int] = node.edge.states.tolist()
    expect("illegal states", [state for state in set(states) if not is_legal(state)], [])
    tiers = [0 if state & DEVICE else 1 if state & HOST else 2 for state in states]
    expect("tiers along an edge", tiers, sorted(tiers))
    counts = (tiers.count(0), len(tiers) - tiers.count(2))
    expect("blocks by tier", (node.edge.num_device, node.edge.num_upper), counts)
    on_top = [
        (child.edge.num_device > 0, child.edge.num_upper > 0) for child in node.children.values()
    ]
    expect(
        "what children told", [child.counted_in_parent for child in node.children.values()], on_top
    )
    sums = (sum(device for device, _ in on_top), sum(upper for _, upper in on_top))
    expect("children by tier", (node.device_children, node.upper_children), sums)
    if sums[0]:
        expect("a node on the device below one that is not", node.edge.is_on_device, True)
    if sums[1]:
        expect("a node in the host below one on disk", node.edge.num_upper, len(node.edge))


def _check_candidates(tree: RadixTree, ref_counts: RefCounts, attached: list[Node]) -> None:
    free = [node for node in attached if not node.is_held]
    for tier, candidates in ref_counts.leaves.items():
        leaves = {node for node in free if tier in node.tails() and not node.transfers}
        expect("candidates", set(candidates), leaves)
        expect("number of candidates", len(candidates), len(leaves))
        expect("candidates with an outdated key", candidates.outdated(), [])
        expect("candidates that would never come up", candidates.num_unreachable(), 0)
    evictable = sum(node.edge.num_device for node in free)
    expect("evictable blocks", ref_counts.evictable_blocks, evictable)
    expect("the root is attached", tree.root.attached and tree.root.parent is None, True)


def _check_slots(
    tier: Tier, allocator: BlockAllocator, nodes: list[Node], leases: list[Lease]
) -> None:
    places = [allocator.free_ids(), *(node.edge.held_slots_in(tier) for node in nodes)]
    if tier is DEVICE_TIER:
        places += [lease.own_blocks() for lease in leases]
    everywhere = np.sort(np.concatenate(places))
    expect(f"slots of {tier.value}", everywhere.tolist(), list(range(allocator.total)))


def _check_transfers(nodes: list[Node], in_flight: InFlight) -> None:
    transfers = [transfer for node in nodes for transfer in node.transfers]
    expect("transfers", set(transfers), set(in_flight.transfers()))
    moving: dict[Node, list[int]] = {node: [] for node in nodes}
    for transfer in set(transfers):
        for node, start, end in transfer.parts():
            expect("a transfer among its node's", transfer in node.transfers, True)
            moving[node] += range(start, end)
            ways = node.edge.states[start:end] & MOVING
            wanted = set() if transfer.of_state else {IN_FLIGHT * BIT[transfer.target]}
            expect("where a transfer goes", set(ways.tolist()), wanted)
    for node, places in moving.items():
        expect("moving", sorted(places), np.flatnonzero(node.edge.states & MOVING).tolist())
    for move, transfer, position in in_flight.open_moves():
        if transfer.of_state:
            continue
        node = transfer.node_at(position)
        froms = node.edge.slots(move.source_tier)[position - node.start]
        to = node.edge.slots(move.target_tier)[position - node.start]
        expect("the slots of a move", (move.source, move.target), (froms, to))
        read = int(node.edge.states[position - node.start]) & BIT[move.source_tier]
        expect("what is being copied is there", bool(read), True)
    opened = Counter(transfer for _, transfer, _ in in_flight.open_moves())
    for transfer in set(transfers):
        expect("open copies of a transfer", transfer.open, opened[transfer])
    for tier in Tier:
        leaving = sum(f.open for f in opened if f.makes_room and f.source is tier)
        arriving = sum(f.open for f in opened if f.target is tier)
        expect("leaving", (in_flight.leaving[tier], in_flight.arriving[tier]), (leaving, arriving))


def _check_quota_usages(
    quota_usages: Mapping[Tier, QuotaUsage],
    nodes: list[Node],
    leases: list[Lease],
    in_flight: InFlight,
) -> None:
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
            expect(f"held in {tier.value}", quota_usage.held.get(owner, 0), held[owner])
            stays = quota_usage.held.get(owner, 0) - leaving[tier, owner]
            expect(f"what stays in {tier.value}", quota_usage.level(owner), stays)
