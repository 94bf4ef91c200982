"""Changes of leases' recurrent states, and the state checkpoints that leases give to the tree.

    open -> [loading] -> (launched, [left_out], committed)* -> [forget] -> end

If a checkpoint lies below the device, it is copied to a device slot. All leases that begin at the
checkpoint wait for the copy, and fail if the copy fails.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefix_cache.eviction.checkpoint_worth import checkpoint_of
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.lease_states import LeaseStates, StateAt
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.checkpoints import SEQUENCE_SLOTS
from prefix_cache.tree.node import Node, Position, Transfer
from storage.move import DEVICE_TIER, NO_STATE


class StateLeasing:
    """The recurrent states of all leases. Used by one thread only."""

    def __init__(
        self, ref_counts: RefCounts, capacity: Capacity, *, in_place: bool = False
    ) -> None:
        """Begin without leases. With `in_place`, each recurrent state is a ring buffer."""
        self._in_place = in_place
        self._ref_counts = ref_counts
        self._capacity = capacity
        self._checkpoints = capacity.checkpoints
        self._block_size = ref_counts.tree.block_size
        self._waiting: dict[Transfer, list[Lease]] = {}
        self._may_start_over: set[Lease] = set()

    def may_open(self, node: Node, owner: str) -> bool:
        """Make room for a lease that starts from `node`'s state checkpoint, if possible now.

        If sequences hold too many slots, each sequence that may start over gives up one slot. From
        then on, its decodes overwrite the state that they read.
        """
        checkpoint = node.checkpoint
        loads = checkpoint is not None and checkpoint.device_slot is None
        if not self._checkpoints.can_take(SEQUENCE_SLOTS + loads, node):
            for lease in self._may_start_over:
                if lease.states is not None:
                    lease.states.overwrites = True
        return self._capacity.state_copies.make_room(SEQUENCE_SLOTS + loads, owner, node)

    def is_short(self) -> bool:
        """Return whether a new lease lacks slots, and no open lease will give up a slot."""
        if not self._checkpoints.are_leased():
            return False
        states = (lease.states for lease in self._may_start_over)
        return not any(one is not None and one.is_shrinking for one in states)

    def let_start_over(self, lease: Lease) -> None:
        """Let decodes overwrite a lease's recurrent state once another sequence waits for slots.

        If a decode that overwrote the state fails, its sequence starts over from the cache.
        """
        if lease.states is not None and not self._in_place:
            self._may_start_over.add(lease)

    def open(self, lease: Lease, matched: int) -> None:
        """Give a lease its slots and let it start from its node's state checkpoint, if any.

        `matched` counts the lease's blocks in the tree, including blocks after that checkpoint.
        """
        node, checkpoints = lease.node, self._checkpoints
        self.refresh(node)
        first = StateAt(node.end * self._block_size, NO_STATE)
        read: dict[int, Node] = {}
        if node.checkpoint is not None:
            first = first._replace(slot=self._begin_at(lease, node))
            read[first.slot] = node
            checkpoints.counts.hits += 1
            node.checkpoint.starts += 1
            checkpoints.used(node)
            checkpoints.read(node)
        owned = checkpoints.take(SEQUENCE_SLOTS, lease.owner)
        assert owned is not None  # ensured by `may_open`
        more = [] if self._in_place else checkpoints.take_for_answer(lease.owner)
        size = self._block_size
        checkpoints.counts.cut_tokens += matched * size - first.position
        lease.states = LeaseStates(first, first, owned + more, matched * size, size, read=read)
        lease.states.keeps_answer = bool(more)
        lease.states.holds = bool(more) and checkpoints.is_partitioned
        lease.states.in_place = self._in_place

    def complete(self, transfer: Transfer) -> None:
        """Apply the end of a recurrent state's copy: make waiting leases ready, or fail them."""
        leases, node = self._waiting.pop(transfer, []), transfer.nodes[0]
        for lease in leases:
            lease.loads -= 1
            if transfer.missed and lease.states is not None:
                lease.failed = True
                lease.states.read = {}
                self._checkpoints.unread(node)
        self._capacity.state_copies.complete(transfer)
        self._capacity.landed(node)

    def may_pin(self, at: Position) -> bool:
        """Return whether the prefix that ends at `at` has a state checkpoint that may be pinned."""
        return self.is_there(at) and self._checkpoints.may_pin()

    def is_there(self, at: Position) -> bool:
        """Return whether the device has a state checkpoint of the prefix that ends at `at`."""
        checkpoint = None if at.within else at.node.checkpoint
        return checkpoint is not None and DEVICE_TIER in checkpoint.copies

    def pin(self, lease: Lease) -> None:
        """Hold the state checkpoint at the end of a lease's blocks while the lease is open."""
        node = lease.node
        if node.checkpoint is not None:  # the checkpoint is on the device, as `may_pin` ensures
            first = StateAt(node.end * self._block_size, self._begin_at(lease, node))
            read = {first.slot: node}
            size = self._block_size
            lease.states = LeaseStates(first, first, [], first.position, size, read=read)
            self._checkpoints.num_pinned += 1
            self._checkpoints.read(node)

    def want(self, lease: Lease, positions: Iterable[int]) -> None:
        """Ask for state checkpoints at the last block boundary before each position.

        The sequence's rows must end at these boundaries (`LeaseStates.row_end`). Positions that the
        sequence has passed are ignored.
        """
        lease.check_open()
        states, size = lease.states, self._block_size
        if states is not None and lease.shares:
            ends = {position // size * size for position in positions}
            states.wanted |= {
                end for end in ends if end > states.at.position and _may_keep(lease, end // size)
            }

    def launched(self, lease: Lease, end: int, slot: int) -> None:
        """Record that a launched row writes the recurrent state at position `end` to `slot`."""
        states = lease.states
        assert states is not None
        states.before, states.at = states.at, StateAt(end, slot)
        whole = end // self._block_size * self._block_size
        if lease.shares and (whole == end or (self._in_place and whole > states.before.position)):
            states.coming.append(StateAt(whole, slot))
        self._unread(states)
        if states.is_overwritten and (spare := states.shrink()):
            self._checkpoints.device.give_back(spare)

    def verified(self, lease: Lease, end: int) -> int:
        """Return the position of the newest recurrent state that is valid up to `end`.

        If the newest row's state is after `end`, the row's tokens are computed again from the state
        before it.
        """
        states = lease.states
        assert states is not None
        if states.in_place:
            states.cut_back(end)
        elif states.at.position > end:
            self.left_out(lease)
        return states.at.position

    def left_out(self, lease: Lease) -> None:
        """Go back to the recurrent state before the newest row, which is computed again."""
        states = lease.states
        assert states is not None
        states.at = states.before
        states.coming = [one for one in states.coming if one.position <= states.at.position]

    def committed(self, lease: Lease, end: int) -> None:
        """Give wanted recurrent states up to `end` to the tree, and keep the last other state."""
        states = lease.states
        if states is None:
            return
        while states.coming and states.coming[0].position <= end:
            one = states.coming.pop(0)
            if one.position in states.wanted:
                states.wanted.discard(one.position)
                if self._give(lease, states, one):
                    states.kept = None
                    continue
            if _may_keep(lease, one.position // self._block_size):
                states.kept = one

    def refresh(self, node: Node) -> None:
        """Update the eviction order of checkpoints up to `node` after their retention changed."""
        if not self._checkpoints.is_empty:
            for one in node.way_up():
                self._checkpoints.offer(one)

    def end(self, lease: Lease) -> None:
        """Give the kept recurrent state to the tree, and free the other slots."""
        states = lease.states
        if states is None:
            return
        if states.holds:  # from now on the checkpoint is charged to its node's owner
            self._checkpoints.end_hold(lease.owner)
            states.holds = False
        if states.kept is not None and not lease.failed:
            self._give(lease, states, states.kept, at_end=True)
        self._close(lease, states)

    def keep_out(self, lease: Lease) -> None:
        """Stop keeping recurrent states of the lease."""
        if lease.states is not None:
            lease.states.wanted, lease.states.coming, lease.states.kept = set(), [], None

    def forget(self, lease: Lease) -> list[Node]:
        """Drop the kept state. Return the nodes with a state checkpoint that this lease gave."""
        states = lease.states
        if states is None:
            return []
        states.kept = None
        return [node for node in states.given if node.attached and node.checkpoint is not None]

    def _begin_at(self, lease: Lease, node: Node) -> int:
        """Return the device slot of a node's recurrent state.

        The lease waits while the state is being loaded.
        """
        checkpoint = checkpoint_of(node)
        if checkpoint.device_slot is None:
            self._capacity.state_copies.load(node, lease.owner)
        coming, slot = checkpoint.coming.get(DEVICE_TIER), checkpoint.device_slot
        assert slot is not None  # ensured by `may_open`
        if coming is not None:
            self._waiting.setdefault(coming, []).append(lease)
            lease.loads += 1
        return slot

    def _close(self, lease: Lease, states: LeaseStates) -> None:
        self._may_start_over.discard(lease)
        for waiting in self._waiting.values():
            if lease in waiting:
                waiting.remove(lease)
        if not states.owned:  # the lease is a pin and owns no slots
            self._checkpoints.num_pinned -= len(states.read)
        for node in states.read.values():
            self._checkpoints.unread(node)
        if states.owned:
            self._checkpoints.device.give_back(states.owned)
        states.owned, states.read, states.kept = [], {}, None

    def _give(
        self, lease: Lease, states: LeaseStates, one: StateAt, *, at_end: bool = False
    ) -> bool:
        """Make a recurrent state the checkpoint of the node that ends at its position.

        Returns False if the state is not kept. The lease gets another slot in exchange, unless it
        ends (`at_end`).
        """
        checkpoints = self._checkpoints
        node = self._node_at(lease, one.position // self._block_size)
        if node is None:
            return False
        if node.checkpoint is not None and node.checkpoint.device_slot is not None:
            checkpoints.used(node)
            return True
        fresh = None
        if checkpoints.may_put(node.owner):
            fresh = [] if at_end else checkpoints.take_in_exchange(lease.owner)
        if fresh is None:
            checkpoints.counts.refused += 1
            return False
        states.owned.remove(one.slot)
        states.owned += fresh
        checkpoints.put(node, one.slot, parts=one.position == states.matched)
        states.given.append(node)
        if one.slot in (states.at.slot, states.before.slot):
            states.read[one.slot] = node
            checkpoints.read(node)
        return True

    def _node_at(self, lease: Lease, block: int) -> Node | None:
        at = Position.after(lease.node).cut(block)
        if not block or at.num_blocks != block or not at.node.attached:
            return None
        return self._ref_counts.split_at(at)

    def _unread(self, states: LeaseStates) -> None:
        for slot in [one for one in states.read if one not in (states.at.slot, states.before.slot)]:
            self._checkpoints.unread(states.read.pop(slot))


def _may_keep(lease: Lease, block: int) -> bool:
    """Return whether the tree may keep this lease's recurrent state at the start of `block`.

    In a namespace that other owners read too, states are kept only at the end of the namespace's
    last block. A state elsewhere would show other owners where a request differed or stopped.
    """
    _, span_end = lease.path.span_at(max(block - 1, 0))
    return span_end is None or span_end == block
