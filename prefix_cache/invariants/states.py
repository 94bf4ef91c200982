"""The check of recurrent states: slots, checkpoints, readers, and the states of leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prefix_cache.invariants.expected import detached_nodes, expect
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.lease_states import LeaseStates
from prefix_cache.tiers.checkpoints import Checkpoints
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.tier_states import TierStates
from prefix_cache.tree.node import Checkpoint, Node
from prefix_cache.tree.tree import RadixTree
from storage.move import DEVICE_TIER


def check_states(
    tree: RadixTree, checkpoints: Checkpoints, leases: Iterable[Lease], in_flight: InFlight
) -> None:
    """Raise InvariantBroken for a lost or doubly used state slot, or a wrong count."""
    leases = list(leases)
    nodes = [*tree.nodes(), *detached_nodes(leases, in_flight)]
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
        expect("readers of a checkpoint", checkpoint.readers, readers[node])
        expect("a checkpoint of nothing", not (checkpoint.copies or checkpoint.coming), False)
        coming = {one for one in node.transfers if one.of_state}
        expect("states being copied", set(checkpoint.coming.values()), coming)


def _check_tier_states(
    at: TierStates, kept: Mapping[Node, Checkpoint], owned: list[int], holders: list[str]
) -> None:
    here = {node: one.copies[at.tier].slot for node, one in kept.items() if at.tier in one.copies}
    coming = {n: one.coming[at.tier] for n, one in kept.items() if at.tier in one.coming}
    filled = [transfer.moves[0].target for transfer in coming.values()]
    everywhere = sorted([*at.allocator.free_ids().tolist(), *owned, *here.values(), *filled])
    first = at.allocator.total - at.usage.total
    expect("state slots", everywhere, list(range(first, at.allocator.total)))
    expect("number of checkpoints", (at.num_kept, at.num_coming), (len(here), len(coming)))
    charged = Counter([*(node.owner for node in [*here, *coming]), *holders])
    expect("slots held of owners' parts", at.num_held, len(holders))
    for owner in {*charged, *at.usage.held}:
        expect("checkpoints of an owner", at.usage.held.get(owner, 0), charged[owner])
    is_device = at.tier is DEVICE_TIER
    in_use = {n for n in here if kept[n].coming or (is_device and kept[n].readers)}
    free = {node for node in here if node.attached and node not in in_use}
    expect("checkpoints that may go", set(at.candidates), free)
    expect("checkpoints with an outdated key", at.candidates.outdated(), [])


def _check_lease_states(lease: Lease, states: LeaseStates) -> None:
    read = {
        slot: node.checkpoint and node.checkpoint.device_slot for slot, node in states.read.items()
    }
    expect("checkpoints that are read", read, {slot: slot for slot in read})
    for one in (states.at, states.before):
        is_there = one.slot in (0, *states.read) or one.slot in states.owned
        expect("a state that may be read is there", is_there, True)
    kept = [*states.coming, *([] if states.kept is None else [states.kept])]
    versions = [one if states.in_place else one.slot for one in kept]
    expect("versions of a state", len(set(versions)), len(versions))
    expect("versions that a lease owns", {one.slot for one in kept} <= set(states.owned), True)
    if states.in_place:
        late = [one for one in kept if one.slot == states.at.slot]
        reach = states.at.position - 2 * states.block_size
        expect("positions of a ring that are whole", [one for one in late if one[0] < reach], [])
    expect("slots of a lease", len(set(states.owned)), len(states.owned))
    beside = set(states.read.values()).difference(lease.node.way_up())
    expect("checkpoints read beside the lease's path", beside, set())
