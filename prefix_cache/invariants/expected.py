"""Functions that all checks use: a comparison of values, and a list of detached nodes."""

from __future__ import annotations

from prefix_cache.errors import InvariantBroken
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tree.node import Node


def expect(what: str, kept: object, recomputed: object) -> None:
    """Raise InvariantBroken if a kept value differs from the recomputed value."""
    if kept != recomputed:
        raise InvariantBroken(f"{what}: kept {kept}, recomputed {recomputed}")


def detached_nodes(leases: list[Lease], in_flight: InFlight) -> list[Node]:
    """Return the detached nodes, which are kept alive by a lease or a copy."""
    found: dict[Node, None] = {}
    for lease in leases:
        node: Node | None = lease.node
        while node is not None and not node.attached:
            found[node] = None
            node = node.parent
    flying = [node for transfer in in_flight.transfers() for node in transfer.nodes]
    found.update((node, None) for node in flying if not node.attached)
    return list(found)
