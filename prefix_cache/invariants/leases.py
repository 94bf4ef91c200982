"""The check of leases: their blocks, their readiness, and the count of leases on each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from prefix_cache.invariants.expected import expect
from prefix_cache.leases.lease import Lease
from prefix_cache.tree.node import Node
from storage.move import DEVICE_TIER, Tier


def check_lease(lease: Lease) -> None:
    """Check the blocks of one lease against the tree, and whether it is ready."""
    expect("a live lease is released", lease.released, False)
    expect("where a lease's node ends", lease.num_shared, lease.node.end)
    expect("shared blocks within a lease", 0 <= lease.num_shared <= lease.num_blocks, True)
    own = [False] * lease.num_shared
    for start, end in lease.duplicates:
        own[start:end] = [True] * (end - start)
    node, block_ids = lease.node, np.zeros(lease.num_shared, dtype=np.int32)
    ready = True
    while node.parent is not None:
        expect("namespace of an edge", node.namespace, lease.path.at(node.start))
        block_ids[node.start : node.end] = node.edge.block_ids
        ready = ready and (node.edge.is_on_device or _is_released(node))
        node = node.parent
    if lease.states is not None:
        ready = ready and all(DEVICE_TIER in _copies(one) for one in lease.states.read.values())
    if lease.failed:
        return  # the lease's device slots may already belong to other blocks
    expect("whether a lease is ready", lease.ready, ready)
    differs = lease.block_ids[: lease.num_shared] != block_ids
    expect("blocks of a lease that are not the tree's", differs.tolist(), own)
    expect("the top of a lease's way", node.attached, True)


def _copies(node: Node) -> Iterable[Tier]:
    return () if node.checkpoint is None else node.checkpoint.copies


def _is_released(node: Node) -> bool:
    up = [one for one in node.transfers if one.target is DEVICE_TIER and not one.of_state]
    return bool(up) and all(one.is_released for one in up)


def check_ref_counts(attached: list[Node], detached: list[Node], leases: list[Lease]) -> None:
    """Check the counts of leases and of held children on each node."""
    counts = Counter(lease.node for lease in leases)
    held = Counter(node.parent for node in (*attached, *detached) if node.is_held)
    for node in (*attached, *detached):
        expect("leases on a node", node.leases, counts[node])
        expect("held children", node.held_children, held[node])
    for node in detached:
        expect("a detached node is held or copied", node.is_held or bool(node.transfers), True)
        expect(
            "its children are held", all(child.is_held for child in node.children.values()), True
        )
